//! The macros of `cuda_std`: `#[kernel]` and `shared_array!`. Use them through `cuda_std`.

mod instance_set;
mod kernel;
mod shared_array;

use proc_macro::TokenStream;

/// Turns an `unsafe fn` into a kernel.
///
/// ```text
/// #[kernel(launch_bounds(256, 1))]
/// pub unsafe fn add_f32(len: u32, a: Global<f32>, b: Global<f32>, out: GlobalMut<f32>) { .. }
/// ```
///
/// `launch_bounds(max_threads, min_blocks)` is CUDA C's `__launch_bounds__`: the largest block that
/// is launched, and how many blocks should be resident on an SM (1 if omitted). Parameters are
/// `Global<T>`, `GlobalMut<T>`, `TensorMap`, `u32`, `i32`, `u64` and `f32`, and arrays of them (but
/// not of maps); there is no return value.
///
/// - On `nvptx64` the function becomes the PTX entry of its name. Its attributes become a comment
///   in the PTX, for `cuda_builder`: `// halfwarp.kernel symbol=add_f32 family=<family> maxntid=256
///   minctapersm=1`. The family is the kernel's file or directory under `src`.
/// - On the host the function is unchanged, and a module of the same name has `SYMBOL` and a struct
///   `Args`, one field a parameter, with `DevicePtr<T>` for `Global<T>` and `GlobalMut<T>`:
///   `Args { .. }.launch(geometry) -> Launch`.
///
/// A generic function lists its instances, each the symbol of an entry and its generic arguments,
/// on which the bounds may depend:
///
/// ```text
/// #[kernel(
///     launch_bounds(T::NUM_THREADS, 1),
///     instances(gemm_f32_128x128 = <Tile128>, gemm_f32_64x64 = <Tile64>)
/// )]
/// pub unsafe fn gemm_f32<T: Tile>(..) { .. }
/// ```
///
/// Then the module has `enum Instance`, one variant per instance, named by its symbol; it is the
/// first argument of `launch`. `Instance::ALL` lists them; `instance.columns()` returns a constant
/// parameter `COLUMNS`, `instance.t()` the `TypeId` of a type parameter `T`. If types of parameters
/// name type parameters (`x: Global<E>`), so does `Args<E>`, and only an instance of these types
/// takes them.
///
/// A variable, with its values, stands for several generic arguments, in a symbol in braces. Each
/// value may have another text there:
///
/// ```text
/// instances(
///     E in [f16, bf16],
///     O in [E as "", f32 as "_f32"],
///     gemm_{E}_64x64{O} = <E, O, Tile64>,     // gemm_f16_64x64, gemm_f16_64x64_f32, ..
/// )
/// ```
///
/// Values that several kernels have are a set, [`instance_set!`]: `E in HALVES` instead of the list.
/// `except(gemm_f16_64x64, ..)` leaves out instances of the lines before it.
///
/// Three more options; `cluster` requires `target(sm_90a)`, and its shape may depend on generic arguments:
///
/// ```text
/// #[kernel(launch_bounds(384, 1), target(sm_90a), cluster(2, 1, 1), overlaps)]
/// ```
///
/// - `target(sm_90a)`: the entries are compiled for Hopper only, instead of for every target;
///   `target(sm_80)`: for the kernels that Hopper's own replace, which are not built for it again. The
///   host has function and launcher in any case; the module's `TARGET` names the target.
/// - `cluster(x, y, z)`: the kernel is launched in clusters of this shape, at most 8 blocks. CUDA
///   C's `__cluster_dims__`; `Launch::cluster` holds the shape.
/// - `overlaps`: the kernel may start before the previous launch has ended (programmatic dependent
///   launch, `Launch::overlaps`). Each thread calls `grid::wait_for_dependencies` before its first
///   access to memory that an earlier launch accesses, and at least one thread per block calls it.
#[proc_macro_attribute]
pub fn kernel(attr: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(attr.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// A set of values that a variable of several kernels' instances has, each with its text in symbols:
///
/// ```text
/// instance_set! {
///     /// The 16-bit floats.
///     pub(crate) HALVES = [f16, bf16 as "b"];
/// }
/// #[kernel(launch_bounds(32), instances(E in HALVES, add_{E} = <E>))]
/// ```
///
/// Types have paths that hold where kernels name the set. `HALVES! { m tokens }` is
/// `m! { [f16, bf16 as "b"] tokens }`, for what the host needs of each value.
#[proc_macro]
pub fn instance_set(input: TokenStream) -> TokenStream {
    instance_set::expand(input.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// `shared_array![f32; 32]`: a view of an array in the block's static shared memory.
///
/// # Safety
/// The macro is called in an `unsafe` block: elements are uninitialised, and each expansion of the
/// macro is *one* array, however often it is executed.
#[proc_macro]
pub fn shared_array(input: TokenStream) -> TokenStream {
    shared_array::expand(input.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
