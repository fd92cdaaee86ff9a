//! The launch of the GEMM for sm_90a.

use super::gemm_f16_sm90::{self, Instance};
use crate::Rows;
use crate::activation::gate_of;
use crate::gemm::config::TileConfig;
use crate::gemm::config::wgmma::BLOCK_K;
use crate::gemm::epilogue::wgmma::{OutElement, SUBTILE_COLUMNS, SUBTILE_ROWS};
use crate::gemm::problem::{BiasAndResidual, refuse, tensor_map};
use crate::gemm::{Linear16, Linear16Operands, Out16};
use crate::tile::element::Operand16;
use core::any::TypeId;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, L2Promotion, TensorMapSpec};

/// The map with 256-byte L2 promotion where row strides are multiples of 256 bytes: 5 % faster at
/// 32 rows of 12288 x 4096, and slower where they are not.
pub(in crate::gemm) fn promoted(spec: TensorMapSpec) -> TensorMapSpec {
    let is_multiple = spec.strides_bytes.iter().all(|stride| stride.is_multiple_of(256));
    let l2_promotion = if is_multiple { L2Promotion::B256 } else { L2Promotion::B128 };
    TensorMapSpec { l2_promotion, ..spec }
}

/// The launch in a configuration of [`WGMMA_TILES`](crate::gemm::config::WGMMA_TILES), whatever
/// [`Summation`](crate::gemm::Summation) the layer asks for; `num_rows` and `maps` as in
/// [`Linear16::launch`].
///
/// # Errors
/// As [`Linear16::launch`], and for bf16 operands in a configuration with f16 accumulators, or a gate
/// in one that has none.
pub fn launch<E: Operand16>(
    config: &TileConfig,
    linear: &Linear16,
    num_sms: usize,
    num_rows: DevicePtr<u32>,
    operands: &Linear16Operands<E>,
    maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
) -> Result<Option<Launch>, LaunchError> {
    linear.check(operands)?;
    let &Linear16 { max_rows, n, k, .. } = linear;
    let outputs = [max_rows, linear.weight_rows()];
    let Some(geometry) = geometry(config, outputs, num_sms)? else { return Ok(None) };
    let x = linear.grouped_input(operands)?;
    let [block_m, block_n] = config.block;
    let [cluster_m, cluster_n] = config.cluster;
    let a = tensor_map(&x, [max_rows, k], [block_m / cluster_n, BLOCK_K as usize]);
    let b = linear.weight_map(&operands.weight, [block_n / cluster_m, BLOCK_K as usize]);
    let operand_maps = [a, b].map(|spec| maps(&promoted(spec)));
    let launch = match &operands.out {
        Out16::F32(out) => {
            let out_map = EncodedTensorMap::NONE;
            launch_to(config, linear, geometry, num_rows, operands, operand_maps, (out, out_map))
        }
        Out16::Half(out) => {
            let out_map = output_map(out, [max_rows, n], maps);
            launch_to(config, linear, geometry, num_rows, operands, operand_maps, (out, out_map))
        }
    };
    launch.map(Some)
}

/// Whether there are instances in a configuration with the layer's gate, or without one.
#[must_use]
pub fn takes(config: &TileConfig, linear: &Linear16) -> bool {
    let is_it =
        |instance: Instance| (instance.t(), gate_of(instance.a())) == (config.tile, linear.gate);
    Instance::find(is_it).is_some()
}

/// The tensor map of 16-bit outputs, if their rows are 16-byte aligned.
pub(in crate::gemm) fn output_map<E: Operand16>(
    out: &Rows<E>,
    [max_rows, n]: [usize; 2],
    maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
) -> EncodedTensorMap {
    let subtile = [SUBTILE_ROWS as usize, SUBTILE_COLUMNS as usize];
    if out.is_aligned() && n.is_multiple_of(8) {
        maps(&tensor_map(out, [max_rows, n], subtile))
    } else {
        EncodedTensorMap::NONE
    }
}

/// As [`launch`], with outputs `O`.
fn launch_to<E: Operand16, O: OutElement>(
    config: &TileConfig,
    linear: &Linear16,
    geometry: Geometry,
    num_rows: DevicePtr<u32>,
    operands: &Linear16Operands<E>,
    [a, b]: [EncodedTensorMap; 2],
    (out, out_map): (&Rows<O>, EncodedTensorMap),
) -> Result<Launch, LaunchError> {
    let types = (config.tile, TypeId::of::<E>(), TypeId::of::<O>(), linear.gate);
    let is_it = |instance: Instance| {
        (instance.t(), instance.e(), instance.o(), gate_of(instance.a())) == types
    };
    let Some(instance) = Instance::find(is_it) else {
        return match linear.gate {
            None => Err(Linear16::F16_ACCUMULATORS_OF_BF16),
            Some(_) => refuse("rows", linear.max_rows, "at most 8 for this gated layer"),
        };
    };
    let BiasAndResidual { bias, residual, residual_stride } =
        BiasAndResidual::new(operands.bias, operands.residual)?;
    let args = gemm_f16_sm90::Args {
        num_rows,
        max_rows: linear.max_rows as u32,
        n: linear.n as u32,
        k: linear.k as u32,
        bias,
        residual,
        residual_stride,
        out: out.ptr,
        out_stride: out.stride_arg()?,
        a,
        b,
        out_map,
    };
    Ok(args.launch(instance, geometry))
}

/// One cluster a tile; without split-K at most as many clusters as run at the same time.
pub(in crate::gemm) fn geometry(
    config: &TileConfig,
    outputs: [usize; 2],
    num_sms: usize,
) -> Result<Option<Geometry>, LaunchError> {
    let [clusters_m, clusters_n] = config.clusters(outputs);
    let num_clusters = clusters_m.saturating_mul(clusters_n);
    if num_clusters > Geometry::MAX_GRID[0] {
        return refuse("tiles", num_clusters, "at most 2147483647");
    }
    let num_clusters =
        if config.split_k == 1 { num_clusters.min(config.workers(num_sms)) } else { num_clusters };
    let grid = [num_clusters * config.blocks_per_cluster(), 1, 1];
    Geometry::new(grid, config.num_threads, config.shared_bytes)
}
