//! What stands for `simt` on the host where the feature `emulator` is off.
//!
//! Kernels are type-checked there and their launchers made, but nothing can run a kernel: a launch has no body, and no
//! function of [`device`] is called.

/// Where an address is.
#[derive(Clone, Copy)]
pub enum Space {
    Global,
    Shared,
    Cluster,
}

/// The signatures of `simt::device`.
#[allow(unused_variables)]
pub mod device {
    use super::Space;

    /// What a lane brings to a warp's collective.
    pub type Words = [u32; 12];

    pub enum Order {
        Relaxed,
        Acquire,
        Release,
        AcqRel,
    }

    pub enum Scope {
        Block,
        Cluster,
        Gpu,
        System,
    }

    pub enum Reduce {
        Add,
    }

    pub enum Element {
        F16,
        Bf16,
        E4m3,
        E5m2,
    }

    pub enum AccumulatorType {
        F32,
        F16,
    }

    #[allow(dead_code)]
    pub enum OperandA {
        Shared(u64),
        Registers { words: [u32; 4], key: u64 },
    }

    #[allow(dead_code)]
    pub struct Wgmma {
        pub a_element: Element,
        pub b_element: Element,
        pub sum: AccumulatorType,
        pub a: OperandA,
        pub b: u64,
        pub a_mn_major: bool,
        pub b_mn_major: bool,
        pub accumulate: bool,
    }

    pub struct Fragment;

    pub struct FragmentA;

    impl FragmentA {
        pub fn new(words: [u32; 4]) -> Self {
            absent()
        }

        pub fn operand(&self) -> OperandA {
            absent()
        }
    }

    fn absent() -> ! {
        panic!("kernels run on the host with the feature `emulator` of cuda_std alone")
    }

    macro_rules! absent {
        ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;)*) => { $(
            pub fn $name($($arg: $ty),*) $(-> $ret)? {
                absent()
            }
        )* };
    }

    absent! {
        fn thread_idx() -> [u32; 3];
        fn block_idx() -> [u32; 3];
        fn block_dim() -> [u32; 3];
        fn grid_dim() -> [u32; 3];
        fn cluster_block_idx() -> [u32; 3];
        fn cluster_dim() -> [u32; 3];
        fn cluster_rank() -> u32;
        fn load(space: Space, address: u64, align: usize, out: &mut [u8]);
        fn speculate(space: Space, address: u64, align: usize, out: &mut [u8]);
        fn store(space: Space, address: u64, align: usize, bytes: &[u8]);
        fn atomic(
            place: (Space, u64),
            len: usize,
            order: (Order, Scope),
            update: impl FnOnce(u64) -> Option<u64>,
        ) -> u64;
        fn poll(
            place: (Space, u64),
            len: usize,
            is_wanted: impl FnOnce(u64) -> bool,
        ) -> Option<u64>;
        fn receive(place: (Space, u64), len: usize);
        fn check_alignment(space: Space, address: u64, align: usize);
        fn flip() -> bool;
        fn collective(
            instruction: &'static str,
            mask: u32,
            brought: &[u32],
            finish: impl FnOnce(&mut [Words; 32]),
        ) -> Words;
        fn sync_warp(mask: u32);
        fn dynamic_shared() -> u32;
        fn static_shared(key: (&'static str, usize), bytes: usize, align: usize) -> u32;
        fn map_shared(address: u32, rank: u32) -> u32;
        fn bar_sync(id: u32, num_threads: Option<u32>);
        fn bar_arrive(id: u32, num_threads: u32);
        fn cluster_arrive(release: bool);
        fn cluster_wait();
        fn fence(scope: Scope);
        fn fence_proxy_async();
        fn fence_mbarrier_init();
        fn set_max_registers(count: u32, increase: bool);
        fn wait_for_dependencies();
        fn launch_dependents();
        fn copy_async(dst: u32, dst_len: usize, src: u64, src_len: usize);
        fn commit_group();
        fn wait_group(pending: usize);
        fn mbarrier_init(address: u32, count: u32);
        fn mbarrier_inval(address: u32);
        fn mbarrier_expect_tx(address: u32, bytes: u32);
        fn mbarrier_arrive(address: u32, count: u32) -> u64;
        fn mbarrier_try_wait(address: u32, parity: u32) -> bool;
        fn mbarrier_test_wait(address: u32, parity: u32) -> bool;
        fn copy_async_arrive(address: u32, counted: bool);
        fn bulk_load(dst: u32, src: u64, bytes: u32, mbarrier: u32, multicast: Option<u16>);
        fn bulk_store(dst: u64, src: u32, bytes: u32);
        fn bulk_copy_to_peer(dst: u32, src: u32, bytes: u32, mbarrier: u32);
        fn store_async(dst: u32, words: &[u32], mbarrier: u32);
        fn bulk_commit_group();
        fn bulk_wait_group(pending: usize, read_only: bool);
        fn tensor_load(
            dst: u32,
            map: &[u8; 128],
            coords: &[i32],
            mbarrier: u32,
            multicast: Option<u16>,
        );
        fn tensor_store(map: &[u8; 128], coords: &[i32], src: u32, reduce: Option<Reduce>);
        fn wgmma_fence_registers();
        fn wgmma_fence(values: &[f32]) -> Fragment;
        fn wgmma(op: &Wgmma, accumulator: &mut Fragment);
        fn wgmma_commit_group();
        fn wgmma_wait_group(pending: usize);
        fn wgmma_read(accumulator: &Fragment, values: &mut [f32]);
    }
}
