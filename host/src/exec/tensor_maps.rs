//! The tensor maps of a plan's launches: what its kernels' TMA loads read, among a launch's
//! arguments.

use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};

use super::ExecError;

/// How a device's maps are made, of what [`TensorMapSpec::check`] lets through.
pub type Encode = fn(&TensorMapSpec) -> Result<EncodedTensorMap, ExecError>;

/// Makes the maps while a plan is lowered. Launchers know of no errors but their own: the first one
/// is kept.
pub struct TensorMaps {
    encode: Encode,
    outcome: Result<(), ExecError>,
}

impl TensorMaps {
    /// Maps that `encode` makes.
    pub fn new(encode: Encode) -> Self {
        TensorMaps { encode, outcome: Ok(()) }
    }

    /// The map of `spec`; none if there cannot be one, which [`TensorMaps::finish`] returns.
    pub fn encode(&mut self, spec: &TensorMapSpec) -> EncodedTensorMap {
        let unsupported = |why: String| ExecError::Unsupported { op: "tensor map".into(), why };
        let checked = spec.check().map_err(|error| unsupported(error.to_string()));
        checked.and_then(|()| (self.encode)(spec)).unwrap_or_else(|error| {
            if self.outcome.is_ok() {
                self.outcome = Err(error);
            }
            EncodedTensorMap::NONE
        })
    }

    /// Whether all maps could be made.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] for a box or tensor that no map can be made of; those of
    /// [`Encode`].
    pub fn finish(self) -> Result<(), ExecError> {
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_std::tensor_map::{Element, L2Promotion, Swizzle};

    fn spec(address: u64) -> TensorMapSpec {
        TensorMapSpec {
            address,
            element: Element::F16,
            dims: vec![64, 128],
            strides_bytes: vec![128],
            box_dims: vec![64, 64],
            swizzle: Swizzle::B128,
            l2_promotion: L2Promotion::default(),
        }
    }

    #[test]
    fn maps_are_those_of_the_device() {
        let mut maps = TensorMaps::new(|spec| Ok(spec.emulated()));
        assert_eq!(maps.encode(&spec(0x1000)), spec(0x1000).emulated());
        assert!(maps.finish().is_ok());
    }

    #[test]
    fn the_first_map_that_cannot_be_made_is_told() {
        let refuse = |_: &TensorMapSpec| Err(ExecError::NoDevice("gone".to_owned()));
        for (addresses, part) in [([8, 0x1000], "a tensor at 0x8"), ([0x1000, 8], "gone")] {
            let mut maps = TensorMaps::new(refuse);
            assert_eq!(addresses.map(|at| maps.encode(&spec(at))), [EncodedTensorMap::NONE; 2]);
            let error = maps.finish().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
