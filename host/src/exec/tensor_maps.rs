//! The tensor maps of a plan: what its kernels' copies of boxes (TMA) read, in the device's memory.

use cuda_std::tensor_map::{TensorMapPtr, TensorMapSpec};

use super::ExecError;
use crate::plan::Plan;

/// Bytes of a map; each lies at a multiple of 64.
const MAP_BYTES: usize = 128;

/// Most maps that an operation takes: Q, K, V and what attention writes.
const MAX_MAPS_PER_OP: usize = 4;

/// Gives each tensor map of a plan its place while the plan is lowered; what lies there is encoded once it is known.
pub struct TensorMaps {
    address: u64,
    max_maps: usize,
    /// In order of address, no two alike.
    specs: Vec<TensorMapSpec>,
}

impl TensorMaps {
    /// The maps of `plan`, from `address` on, a multiple of 64: there are [`TensorMaps::max_bytes`] for them.
    pub fn new(plan: &Plan, address: u64) -> Self {
        TensorMaps { address, max_maps: max_maps(plan), specs: Vec::new() }
    }

    /// Bytes that the maps of `plan` take at most.
    pub fn max_bytes(plan: &Plan) -> usize {
        max_maps(plan) * MAP_BYTES
    }

    /// Where the map of `spec` is going to lie: the same place for the same box of the same tensor.
    pub fn place(&mut self, spec: &TensorMapSpec) -> TensorMapPtr {
        let index = self.specs.iter().position(|known| known == spec).unwrap_or_else(|| {
            self.specs.push(spec.clone());
            self.specs.len() - 1
        });
        TensorMapPtr(self.address + (index * MAP_BYTES) as u64)
    }

    /// The maps as `encode` makes them, one behind the other.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] for a box or tensor that no map can be made of, or more maps than operations have;
    /// those of `encode`.
    pub fn encoded(
        &self,
        encode: impl Fn(&TensorMapSpec) -> Result<[u8; MAP_BYTES], ExecError>,
    ) -> Result<Vec<u8>, ExecError> {
        let unsupported = |why: String| ExecError::Unsupported { op: "tensor map".into(), why };
        if self.specs.len() > self.max_maps {
            let (count, max) = (self.specs.len(), self.max_maps);
            return Err(unsupported(format!("{count} of them: at most {max} were expected")));
        }
        let mut bytes = Vec::with_capacity(self.specs.len() * MAP_BYTES);
        for spec in &self.specs {
            spec.check().map_err(|error| unsupported(error.to_string()))?;
            bytes.extend(encode(spec)?);
        }
        Ok(bytes)
    }
}

fn max_maps(plan: &Plan) -> usize {
    plan.ops.len() * MAX_MAPS_PER_OP
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::testing::plan;
    use cuda_std::tensor_map::{Element, Swizzle};

    fn spec(address: u64) -> TensorMapSpec {
        TensorMapSpec {
            address,
            element: Element::F16,
            dims: vec![64, 128],
            strides_bytes: vec![128],
            box_dims: vec![64, 64],
            swizzle: Swizzle::B128,
        }
    }

    #[test]
    fn equal_maps_share_a_place() {
        let plan = plan();
        let mut maps = TensorMaps::new(&plan, 0x4000);
        let places = [0x1000, 0x2000, 0x1000].map(|address| maps.place(&spec(address)).0);
        assert_eq!(places, [0x4000, 0x4080, 0x4000]);
        let encoded = maps.encoded(|spec| Ok(spec.emulated())).unwrap();
        assert_eq!(encoded, [spec(0x1000).emulated(), spec(0x2000).emulated()].concat());
        assert!(encoded.len() <= TensorMaps::max_bytes(&plan));
    }

    #[test]
    fn rejects_what_no_map_can_be_made_of() {
        let plan = plan();
        let encoded = |specs: &mut dyn Iterator<Item = TensorMapSpec>| {
            let mut maps = TensorMaps::new(&plan, 0x4000);
            specs.for_each(|spec| _ = maps.place(&spec));
            maps.encoded(|_| Ok([0; MAP_BYTES])).map_err(|error| error.to_string())
        };
        let error = encoded(&mut [spec(8)].into_iter()).unwrap_err();
        assert!(error.contains("a tensor at 0x8"), "{error}");
        let max = plan.ops.len() * MAX_MAPS_PER_OP;
        let many = |count: usize| (0..count).map(|i| spec(i as u64 * 16));
        assert!(encoded(&mut many(max)).is_ok());
        let error = encoded(&mut many(max + 1)).unwrap_err();
        assert!(error.contains(&format!("{} of them: at most {max}", max + 1)), "{error}");
    }
}
