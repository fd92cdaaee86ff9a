//! From `quantization_config` and the tensors of a checkpoint to quantised weights.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;

use super::mxfp4::{BLOCK_ELEMS, NIBBLE_BYTES};
use super::{Layout, Order, TensorRange, int4, words};
use crate::plan::Dtype;
use crate::weights::checkpoint::Located;
use crate::weights::map::MappedFile;
use crate::weights::{TensorDtype, TensorInfo, WeightsError, shown};

/// What `quantization_config` says.
enum Scheme {
    /// `weight_block_size`, or a scale for each row or for the tensor.
    Fp8 {
        block: Option<[usize; 2]>,
    },
    Int4 {
        order: Order,
        group_size: Option<usize>,
    },
    Mxfp4,
}

/// Puts the quantised weights of a checkpoint with this `config` in the place of what they are
/// stored in.
///
/// # Errors
/// [`WeightsError::Quantization`] for a scheme that is not read, or tensors that do not fit it.
pub fn resolve(
    dir: &Path,
    config: &Json,
    files: &[MappedFile],
    tensors: &mut BTreeMap<String, Located>,
) -> Result<(), WeightsError> {
    let quantization = &config["quantization_config"];
    if quantization.is_null() {
        return Ok(());
    }
    let fault = |reason| WeightsError::Quantization { path: dir.to_owned(), reason };
    match scheme(quantization).map_err(fault)? {
        Scheme::Fp8 { block } => resolve_fp8(tensors, block),
        Scheme::Int4 { order, group_size } => resolve_int4(files, tensors, order, group_size),
        Scheme::Mxfp4 => resolve_mxfp4(tensors),
    }
    .map_err(fault)
}

fn scheme(config: &Json) -> Result<Scheme, String> {
    let text = |field: &str| config[field].as_str().unwrap_or_default().to_lowercase();
    let method = text("quant_method");
    match &method[..] {
        "fp8" => {
            let sizes = match &config["weight_block_size"] {
                Json::Null => return Ok(Scheme::Fp8 { block: None }),
                sizes => [&sizes[0], &sizes[1]].map(|size| size.as_u64().unwrap_or(0) as usize),
            };
            match sizes.contains(&0) {
                true => Err("weight_block_size should be two numbers above 0".to_owned()),
                false => Ok(Scheme::Fp8 { block: Some(sizes) }),
            }
        }
        "compressed-tensors" => match &text("format")[..] {
            "float-quantized" => {
                let groups = config["config_groups"].as_object().into_iter().flatten();
                let mut blocks = groups.map(|(_, group)| &group["weights"]["block_structure"]);
                let block = blocks.find(|block| !block.is_null());
                let size = |block: &Json, i: usize| {
                    block[i].as_u64().and_then(|size| usize::try_from(size).ok())
                };
                let block = block.and_then(|block| Some([size(block, 0)?, size(block, 1)?]));
                Ok(Scheme::Fp8 { block: block.filter(|block| !block.contains(&0)) })
            }
            format => Err(format!(
                "compressed-tensors of format {} are not supported: float-quantized (FP8) are",
                shown(format)
            )),
        },
        "awq" | "gptq" => int4_scheme(config, &method),
        "mxfp4" => Ok(Scheme::Mxfp4),
        _ => Err(format!(
            "weights quantised by {} are not supported: those by fp8, compressed-tensors (FP8), \
             awq and gptq (4 bits) and mxfp4 are",
            shown(&method)
        )),
    }
}

fn int4_scheme(config: &Json, method: &str) -> Result<Scheme, String> {
    if config["bits"].as_u64() != Some(4) {
        return Err(format!("{method} of {} bits is not supported: 4 bits are", config["bits"]));
    }
    let group_size = match config["group_size"].as_i64() {
        // One group for all inputs.
        Some(-1) => None,
        Some(size @ 1..) => Some(size as usize),
        _ => return Err(format!("{method}: group_size is {}", config["group_size"])),
    };
    let order = match method {
        "awq" => {
            let version = config["version"].as_str().unwrap_or("gemm").to_lowercase();
            if version != "gemm" {
                return Err(format!(
                    "awq of version {} is not supported: gemm is",
                    shown(&version)
                ));
            }
            Order::Awq
        }
        _ if config["desc_act"] == true => {
            return Err("gptq with act-order (desc_act) is not supported: its groups are not of \
                        neighbouring columns"
                .to_owned());
        }
        _ => Order::Gptq { zero_bias: u8::from(config["checkpoint_format"] != "gptq_v2") },
    };
    Ok(Scheme::Int4 { order, group_size })
}

/// Every F8_E4M3 matrix gets its scales.
fn resolve_fp8(
    tensors: &mut BTreeMap<String, Located>,
    block: Option<[usize; 2]>,
) -> Result<(), String> {
    let is_fp8 = |tensor: &Located| tensor.info.dtype == TensorDtype::Other("F8_E4M3".to_owned());
    let weights = tensors.iter().filter(|(_, tensor)| is_fp8(tensor));
    let names: Vec<String> = weights.map(|(name, _)| name.clone()).collect();
    for name in names {
        let scales = ["_scale_inv", "_scale"]
            .iter()
            .find_map(|suffix| tensors.remove(&format!("{name}{suffix}")));
        let scales = scales.ok_or_else(|| format!("tensor {} has no scale", shown(&name)))?;
        let weight = tensors.get_mut(&name).expect("it is one of them");
        let &[rows, cols] = &weight.info.shape[..] else {
            return Err(format!("tensor {} is of FP8, and no matrix", shown(&name)));
        };
        let num_scales: usize = scales.info.shape.iter().product();
        // With one scale, or one for each row, the blocks are these.
        let block = match (num_scales, block) {
            (1, _) => [rows, cols],
            (_, Some(block)) => block,
            (_, None) => [1, cols],
        };
        let blocks = rows.div_ceil(block[0].max(1)) * cols.div_ceil(block[1].max(1));
        if weight.info.range.len() != rows * cols || num_scales != blocks {
            return Err(format!(
                "tensor {} of shape [{rows}, {cols}] has scales of shape {:?}",
                shown(&name),
                scales.info.shape
            ));
        }
        let scales = tensor_range(&format!("{name}_scale"), scales)?;
        weight.packed = Some(Layout::Fp8 { scales, block });
    }
    Ok(())
}

/// Every `X.qweight` becomes `X.weight`.
fn resolve_int4(
    files: &[MappedFile],
    tensors: &mut BTreeMap<String, Located>,
    order: Order,
    group_size: Option<usize>,
) -> Result<(), String> {
    let names = tensors.keys().filter_map(|name| name.strip_suffix(".qweight"));
    let stems: Vec<String> = names.map(str::to_owned).collect();
    for stem in stems {
        let mut take = |part: &str| {
            let name = format!("{stem}.{part}");
            tensors.remove(&name).ok_or_else(|| format!("tensor {} is missing", shown(&name)))
        };
        let (weight, zeros, scales) = (take("qweight")?, take("qzeros")?, take("scales")?);
        let groups_of_columns = take("g_idx").ok();
        let wrong = |part: &str, tensor: &Located| {
            let name = format!("{stem}.{part}");
            format!("tensor {} has shape {:?}, not as in 4 bits", shown(&name), tensor.info.shape)
        };
        let (&[groups, rows], &[word_rows, word_cols]) =
            (&scales.info.shape[..], &weight.info.shape[..])
        else {
            return Err(wrong("scales", &scales));
        };
        let (cols, expected_cols) = match order {
            Order::Awq => (Some(word_rows), rows / 8),
            Order::Gptq { .. } => (word_rows.checked_mul(8), rows),
        };
        let elems = cols.and_then(|cols| cols.checked_mul(rows)).unwrap_or(0);
        let cols = cols.unwrap_or(0);
        let group_size = group_size.unwrap_or(cols).max(1);
        let is_whole = rows.is_multiple_of(8) && groups == cols.div_ceil(group_size) && elems > 0;
        if !is_whole || word_cols != expected_cols || weight.info.range.len() != elems / 2 {
            return Err(wrong("qweight", &weight));
        }
        if let Some(groups) = groups_of_columns {
            let groups = words(&files[groups.file].bytes()[groups.info.range]);
            let group = |col: usize| (col / group_size) as u32;
            if !groups.iter().map(|word| u32::from_le_bytes(*word)).eq((0..cols).map(group)) {
                return Err(format!(
                    "tensor {} puts columns that are no neighbours into a group: act-order is not \
                     supported",
                    shown(&format!("{stem}.g_idx"))
                ));
            }
        }
        if zeros.info.range.len() != groups * rows / 2 {
            return Err(wrong("qzeros", &zeros));
        }
        let scales = tensor_range(&format!("{stem}.scales"), scales)?;
        let zeros = TensorRange { file: zeros.file, range: zeros.info.range, dtype: Dtype::U32 };
        let dtype = TensorDtype::Other("INT4".to_owned());
        let info = TensorInfo { shape: vec![rows, cols], dtype, range: weight.info.range };
        let is_in_blocks = scales.dtype == Dtype::F16
            && [group_size, cols].iter().all(|n| n.is_multiple_of(Dtype::Q4_0.block_elems()));
        let stored_zeros = words(&files[zeros.file].bytes()[zeros.range.clone()]);
        let blocks = is_in_blocks.then(|| int4::blocks_dtype(order, stored_zeros));
        let packed = Some(Layout::Int4 { order, zeros, scales, group_size, blocks });
        tensors.insert(format!("{stem}.weight"), Located { file: weight.file, info, packed });
    }
    Ok(())
}

/// Every `X_blocks` and `X_scales` become `X.weight`.
fn resolve_mxfp4(tensors: &mut BTreeMap<String, Located>) -> Result<(), String> {
    let names = tensors.keys().filter_map(|name| name.strip_suffix("_blocks"));
    let stems: Vec<String> = names.map(str::to_owned).collect();
    for stem in stems {
        let mut take = |part: &str| {
            let name = format!("{stem}_{part}");
            tensors.remove(&name).ok_or_else(|| format!("tensor {} is missing", shown(&name)))
        };
        let (blocks, scales) = (take("blocks")?, take("scales")?);
        let wrong = |part: &str, tensor: &Located| {
            let name = format!("{stem}_{part}");
            let TensorInfo { shape, dtype, .. } = &tensor.info;
            Err(format!(
                "tensor {} is {dtype} of shape {shape:?}, not as in MXFP4: blocks are U8 of shape \
                 [.., rows, n, {NIBBLE_BYTES}], their scales U8 of shape [.., rows, n]",
                shown(&name)
            ))
        };
        let is_bytes = |tensor: &Located, elems: Option<usize>| {
            tensor.info.dtype == TensorDtype::Other("U8".to_owned())
                && elems == Some(tensor.info.range.len())
        };
        let elems = |shape: &[usize]| shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim));
        let Some((&NIBBLE_BYTES, of_scales)) = blocks.info.shape.split_last() else {
            return wrong("blocks", &blocks);
        };
        let Some((&num_blocks, rows)) = of_scales.split_last() else {
            return wrong("blocks", &blocks);
        };
        if rows.is_empty() || !is_bytes(&blocks, elems(&blocks.info.shape)) {
            return wrong("blocks", &blocks);
        }
        if scales.info.shape != of_scales || !is_bytes(&scales, elems(of_scales)) {
            return wrong("scales", &scales);
        }
        // No more than twice the bytes of the file, but for blocks of no row.
        let cols = num_blocks.checked_mul(BLOCK_ELEMS);
        let Some(shape) = cols.map(|cols| [rows, &[cols]].concat()).filter(|s| elems(s).is_some())
        else {
            return wrong("blocks", &blocks);
        };
        let scales = TensorRange { file: scales.file, range: scales.info.range, dtype: Dtype::U32 };
        let dtype = TensorDtype::Other("MXFP4".to_owned());
        let info = TensorInfo { shape, dtype, range: blocks.info.range };
        let packed = Some(Layout::Mxfp4 { scales });
        tensors.insert(format!("{stem}.weight"), Located { file: blocks.file, info, packed });
    }
    Ok(())
}

fn tensor_range(name: &str, tensor: Located) -> Result<TensorRange, String> {
    match tensor.info.dtype {
        TensorDtype::Known(dtype) => {
            Ok(TensorRange { file: tensor.file, range: tensor.info.range, dtype })
        }
        TensorDtype::Other(dtype) => Err(format!("tensor {} is of {dtype}", shown(name))),
    }
}
