//! Tensor maps on the device: encoded by the driver, each plan's in an allocation of its own.

use cuda_loader::TiledTensorMap;
use cuda_std::tensor_map::TensorMapSpec;
use cust::stream::Stream;

use super::device::{DeviceInfo, failed};
use super::memory::Block;
use crate::exec::ExecError;
use crate::exec::tensor_maps::TensorMaps;
use crate::plan::Plan;

/// Room for the tensor maps of `plan`.
pub fn allocate(device: &DeviceInfo, plan: &Plan, stream: &Stream) -> Result<Block, ExecError> {
    Block::allocate(device, "the tensor maps", TensorMaps::max_bytes(plan), stream)
}

/// Encodes the maps that were given places in `block`, and brings them there.
pub fn upload(maps: &TensorMaps, block: &mut Block, stream: &Stream) -> Result<(), ExecError> {
    let encoded = maps.encoded(encode)?;
    if encoded.is_empty() {
        return Ok(());
    }
    // SAFETY: the copy is waited for right below, and no kernel has been launched that could read the maps.
    let started = unsafe { block.write_async(0, &encoded, stream) };
    stream.synchronize().map_err(failed("uploading tensor maps"))?;
    started
}

fn encode(spec: &TensorMapSpec) -> Result<[u8; 128], ExecError> {
    let driver = cuda_loader::load().map_err(|error| ExecError::NoDevice(error.to_string()))?;
    let tensor = TiledTensorMap {
        address: spec.address,
        data_type: spec.element.driver_code(),
        dims: &spec.dims,
        strides_bytes: &spec.strides_bytes,
        box_dims: &spec.box_dims,
        swizzle: spec.swizzle as u32,
    };
    driver.encode_tensor_map(&tensor).map_err(|error| ExecError::Driver {
        call: format!("making a tensor map of {spec:?}"),
        error: error.to_string(),
    })
}
