//! Tensor maps as the driver encodes them.

use cuda_loader::TiledTensorMap;
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};

use crate::exec::ExecError;

/// The map of `spec`, which is one.
pub fn encode(spec: &TensorMapSpec) -> Result<EncodedTensorMap, ExecError> {
    let driver = cuda_loader::load().map_err(|error| ExecError::NoDevice(error.to_string()))?;
    let tensor = TiledTensorMap {
        address: spec.address,
        data_type: spec.element.driver_code(),
        dims: &spec.dims,
        strides_bytes: &spec.strides_bytes,
        box_dims: &spec.box_dims,
        swizzle: spec.swizzle as u32,
        l2_promotion: spec.l2_promotion as u32,
    };
    let encoded = driver.encode_tensor_map(&tensor).map_err(|error| ExecError::Driver {
        call: format!("making a tensor map of {spec:?}"),
        error: error.to_string(),
    })?;
    Ok(EncodedTensorMap(encoded))
}
