//! `ncclConfig_t`: a structure that grows at its end from version to version, and says its own size.

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};
use std::ptr;

use super::Version;

/// `NCCL_API_MAGIC`.
const MAGIC: u32 = 0xcafe_beef;

/// `NCCL_CONFIG_UNDEF_INT`: NCCL's default.
const UNDEFINED: c_int = c_int::MIN;

/// `ncclNvlsHostModeDisable`.
const NVLS_HOST_MODE_DISABLE: c_int = c_int::MAX;

/// The first version that has `nvlsHostMode`.
const WITH_NVLS_HOST_MODE: Version = Version { major: 2, minor: 32, patch: 0 };

/// A `ncclConfig_t` of NCCL 2.32; that of 2.27 is its beginning.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    /// The `NCCL_VERSION_CODE` of the header: says which fields are there.
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
    // From here on newer than 2.27.
    n_channels_per_net_peer: c_int,
    nvlink_centric_sched: c_int,
    graph_usage_mode: c_int,
    num_rma_ctx: c_int,
    max_p2p_peers: c_int,
    graph_stream_ordering: c_int,
    launch_order_implicit: c_int,
    num_rma_sig: c_int,
    rma_eager_init: c_int,
    host_cft_mode: c_int,
    nvls_host_mode: c_int,
}

/// The size of the structure in 2.27.
const SIZE_2_27: usize = 72;

// As in `nccl.h` of 2.27.7 and of 2.32.3.
const _: () = {
    assert!(size_of::<Config>() == 120);
    assert!(offset_of!(Config, magic) == 8 && offset_of!(Config, version) == 12);
    assert!(offset_of!(Config, blocking) == 16 && offset_of!(Config, net_name) == 32);
    assert!(offset_of!(Config, comm_name) == 48 && offset_of!(Config, nvls_ctas) == 68);
    assert!(offset_of!(Config, n_channels_per_net_peer) == SIZE_2_27);
    assert!(offset_of!(Config, graph_usage_mode) == 80 && offset_of!(Config, num_rma_sig) == 100);
    assert!(offset_of!(Config, nvls_host_mode) == 112);
};

/// Whether the configuration of this version turns NVLink multicast off.
pub(super) fn turns_multicast_off(version: Version) -> bool {
    version >= WITH_NVLS_HOST_MODE
}

impl Config {
    /// Non-blocking, without NVLink multicast, in the layout that a library of this version has or has had.
    pub(super) fn of(version: Version) -> Self {
        let (size, header) = if turns_multicast_off(version) {
            (size_of::<Self>(), 23_200)
        } else {
            (SIZE_2_27, 22_700)
        };
        Self {
            size,
            magic: MAGIC,
            version: header,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
            comm_name: ptr::null(),
            collnet_enable: UNDEFINED,
            cta_policy: UNDEFINED,
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
            n_channels_per_net_peer: UNDEFINED,
            nvlink_centric_sched: UNDEFINED,
            graph_usage_mode: UNDEFINED,
            num_rma_ctx: UNDEFINED,
            max_p2p_peers: UNDEFINED,
            graph_stream_ordering: UNDEFINED,
            launch_order_implicit: UNDEFINED,
            num_rma_sig: UNDEFINED,
            rma_eager_init: UNDEFINED,
            host_cft_mode: UNDEFINED,
            nvls_host_mode: NVLS_HOST_MODE_DISABLE,
        }
    }
}
