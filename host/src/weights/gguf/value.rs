//! Reading the key-value part.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::reader::Reader;
use super::{GgufError, Metadata, Value};
use crate::weights::shown;

/// Elements of all arrays together: a vocabulary of a million tokens has four million (tokens,
/// scores, types, merges). An element takes up to 32 times its bytes in the file, so this bounds
/// what a hostile file can make us hold.
const MAX_ARRAY_ELEMS: u64 = 1 << 22;

/// Fewest bytes of a pair: key length, type, a value of one byte.
const MIN_PAIR_BYTES: usize = 8 + 4 + 1;

const ARRAY: u32 = 9;

/// Reads the number of pairs and the pairs.
pub(super) fn read_metadata(reader: &mut Reader) -> Result<Metadata, GgufError> {
    reader.reading = String::from("the number of metadata keys");
    let num_pairs = reader.count(MIN_PAIR_BYTES, u64::MAX)?;
    let mut elems_left = MAX_ARRAY_ELEMS;
    let mut pairs = BTreeMap::new();
    for index in 0..num_pairs {
        reader.reading = format!("metadata key {index} of {num_pairs}");
        let key = reader.string()?;
        reader.reading = format!("metadata {}", shown(&key));
        let value = match reader.u32()? {
            ARRAY => read_array(reader, &mut elems_left)?,
            type_id => read_scalar(reader, type_id)?,
        };
        match pairs.entry(key) {
            Entry::Vacant(entry) => entry.insert(value),
            Entry::Occupied(entry) => {
                return Err(GgufError::Duplicate(format!("metadata {}", shown(entry.key()))));
            }
        };
    }
    Ok(Metadata(pairs))
}

fn read_array(reader: &mut Reader, elems_left: &mut u64) -> Result<Value, GgufError> {
    let type_id = reader.u32()?;
    if type_id == ARRAY {
        return Err(GgufError::NestedArray { reading: reader.reading.clone() });
    }
    let count = reader.count(1, *elems_left)?;
    *elems_left -= count;
    (0..count).map(|_| read_scalar(reader, type_id)).collect::<Result<_, _>>().map(Value::Array)
}

fn read_scalar(reader: &mut Reader, type_id: u32) -> Result<Value, GgufError> {
    Ok(match type_id {
        0 => Value::U8(u8::from_le_bytes(reader.array()?)),
        1 => Value::I8(i8::from_le_bytes(reader.array()?)),
        2 => Value::U16(u16::from_le_bytes(reader.array()?)),
        3 => Value::I16(i16::from_le_bytes(reader.array()?)),
        4 => Value::U32(u32::from_le_bytes(reader.array()?)),
        5 => Value::I32(i32::from_le_bytes(reader.array()?)),
        6 => Value::F32(f32::from_le_bytes(reader.array()?)),
        7 => Value::Bool(reader.array::<1>()? != [0]),
        8 => Value::String(reader.string()?),
        10 => Value::U64(u64::from_le_bytes(reader.array()?)),
        11 => Value::I64(i64::from_le_bytes(reader.array()?)),
        12 => Value::F64(f64::from_le_bytes(reader.array()?)),
        _ => return Err(GgufError::ValueType { reading: reader.reading.clone(), type_id }),
    })
}
