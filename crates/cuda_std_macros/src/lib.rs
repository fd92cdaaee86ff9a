//! The macros of `cuda_std`: `#[kernel]` and `shared_array!`. Use them through `cuda_std`.

mod kernel;
mod shared_array;

use proc_macro::TokenStream;

/// Makes a kernel of an `unsafe fn`.
///
/// ```text
/// #[kernel(launch_bounds(256, 1))]
/// pub unsafe fn add_f32(len: u32, a: Global<f32>, b: Global<f32>, out: GlobalMut<f32>) { .. }
/// ```
///
/// `launch_bounds(max_threads, min_blocks)` is CUDA C's `__launch_bounds__`: the most threads a
/// block is launched with, and how many blocks should fit on an SM (1 if left out). Parameters are
/// `Global<T>`, `GlobalMut<T>`, `TensorMap`, `u32`, `i32`, `u64` and `f32`; there is no return value.
///
/// - On `nvptx64` the function becomes the PTX entry of its name, and its facts a comment in the
///   PTX, for `cuda_builder`: `// halfwarp.kernel symbol=add_f32 family=<family> maxntid=256
///   minctapersm=1`. The family is the file or directory under `src` that the kernel stands in.
/// - On the host the function stays as it is, and a module of the same name holds `SYMBOL` and
///   `launch(geometry, args..) -> Launch`, in which `Global<T>` and `GlobalMut<T>` are
///   `DevicePtr<T>`.
///
/// A generic function lists its instances, each the symbol of an entry and its generic arguments;
/// the bounds may depend on them:
///
/// ```text
/// #[kernel(
///     launch_bounds(T::NUM_THREADS, 1),
///     instances(gemm_f32_128x128 = <Tile128>, gemm_f32_64x64 = <Tile64>)
/// )]
/// pub unsafe fn gemm_f32<T: Tile>(..) { .. }
/// ```
///
/// Then the module holds `enum Instance`, one variant an instance, named by its symbol, and
/// `launch` takes one first. `Instance::ALL` lists them; a constant parameter `COLUMNS` is read by
/// `instance.columns()`.
///
/// Three more options, of which `cluster` needs `target`; the shape may depend on generic arguments:
///
/// ```text
/// #[kernel(launch_bounds(384, 1), target(sm_90a), cluster(2, 1, 1), overlaps)]
/// ```
///
/// - `target(sm_90a)`: the entries are compiled for Hopper alone, instead of for every target. The
///   host has launcher and function all the same, and the module's `TARGET` says so.
/// - `cluster(x, y, z)`: the kernel is launched in clusters of so many blocks, 8 at most. CUDA C's
///   `__cluster_dims__`; `Launch::cluster` holds the shape.
/// - `overlaps`: the kernel may start before the launch before it has ended. It calls
///   `grid::wait_for_dependencies` before it reads or writes anything that a launch before may
///   write or read, in every thread that does, and in every block in at least one.
///   `Launch::overlaps` says so; a kernel without the option is never launched so.
#[proc_macro_attribute]
pub fn kernel(attr: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(attr.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// `shared_array![f32; 32]`: a view of shared memory of the block's own, of a length known when the
/// crate is compiled.
///
/// # Safety
/// The macro is called in an `unsafe` block: elements are uninitialised, and each expansion of the
/// macro is *one* array, however often it is reached.
#[proc_macro]
pub fn shared_array(input: TokenStream) -> TokenStream {
    shared_array::expand(input.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
