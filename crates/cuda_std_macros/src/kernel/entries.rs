//! The device's side: the PTX entries of a kernel and their attributes for `cuda_builder`.

use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};
use syn::{GenericArgument, GenericParam, Ident, ItemFn};

use super::Arg;
use super::attributes::Attributes;
use super::instances::Instance;

/// The `ptx-kernel` entries, their attributes for `cuda_builder`, and a check of the bounds for
/// host and device.
pub fn entries(function: &ItemFn, args: &[Arg<'_>], attributes: &Attributes) -> TokenStream {
    let family = family(function);
    let entry = |symbol: &Ident, generic_args: &[GenericArgument]| {
        let module = module(symbol);
        let bindings = bindings(function, generic_args);
        let bounds = bounds(attributes);
        let facts = facts(symbol, &family, attributes);
        let device_entry = device_entry(function, args, symbol, generic_args);
        let host_entry = host_entry(function, args, symbol, generic_args, attributes);
        let is_device = is_device(attributes);
        quote! {
            mod #module {
                #[allow(unused_imports)]
                use super::*;
                #bindings
                #bounds
                #[cfg(#is_device)]
                #facts
                #[cfg(#is_device)]
                #device_entry
                #[cfg(not(target_arch = "nvptx64"))]
                #host_entry
            }
        }
    };
    if attributes.instances.is_empty() {
        entry(&function.sig.ident, &[])
    } else {
        let instances = attributes.instances.iter();
        instances.map(|Instance { symbol, args }| entry(symbol, args)).collect()
    }
}

/// The module that holds the entry `symbol`: the PTX entry on the device, `ENTRY` on the host.
pub fn module(symbol: &Ident) -> Ident {
    format_ident!("__entry_{symbol}")
}

/// The path component under `src` of the kernel's file: `gemm` for `src/gemm/f32.rs`. For a file
/// outside of a `src`, the file's name.
fn family(function: &ItemFn) -> String {
    let file = function.sig.ident.span().unwrap().file();
    let path = file
        .rsplit_once("src/")
        .map_or_else(|| file.rsplit('/').next().unwrap_or_default(), |(_, under_src)| under_src);
    let component = path.split('/').next().unwrap_or_default();
    component.strip_suffix(".rs").unwrap_or(component).to_owned()
}

/// The builds that have the entries. A target's features include those of earlier targets; `sm_90a`
/// is a feature of its own target only.
fn is_device(attributes: &Attributes) -> TokenStream {
    match attributes.target {
        Some("sm_80") => quote!(all(target_arch = "nvptx64", not(target_feature = "sm_90a"))),
        Some(target) => quote!(all(target_arch = "nvptx64", target_feature = #target)),
        None => quote!(target_arch = "nvptx64"),
    }
}

/// The kernel's generic parameters as items, which the bounds may name.
fn bindings(function: &ItemFn, generic_args: &[GenericArgument]) -> TokenStream {
    let binding = |(param, arg): (&GenericParam, &GenericArgument)| match param {
        GenericParam::Type(param) => {
            let name = &param.ident;
            quote!(#[allow(dead_code)] type #name = #arg;)
        }
        GenericParam::Const(param) => {
            let (name, ty) = (&param.ident, &param.ty);
            quote!(#[allow(dead_code)] const #name: #ty = #arg;)
        }
        GenericParam::Lifetime(_) => TokenStream::new(),
    };
    function.sig.generics.params.iter().zip(generic_args).map(binding).collect()
}

/// The bounds, checked.
fn bounds(attributes: &Attributes) -> TokenStream {
    let Attributes { max_threads, min_blocks, cluster, .. } = attributes;
    let cluster = cluster.as_ref().map(|shape| {
        quote! {
            const __CLUSTER: [u32; 3] = [#(#shape),*];
            const _: () = {
                let [x, y, z] = __CLUSTER;
                assert!(
                    x >= 1 && x <= 8 && y >= 1 && y <= 8 && z >= 1 && z <= 8 && x * y * z <= 8,
                    "a cluster is of 1 to 8 blocks"
                );
            };
        }
    });
    quote! {
        const _: () = assert!(
            (#max_threads) >= 1 && (#max_threads) <= 1024 && (#min_blocks) >= 1,
            "launch bounds are 1 to 1024 threads and at least 1 block"
        );
        #cluster
    }
}

/// The comment in the PTX, which `cuda_builder` reads.
fn facts(symbol: &Ident, family: &str, attributes: &Attributes) -> TokenStream {
    let Attributes { max_threads, min_blocks, cluster, .. } = attributes;
    let mut fact = format!(
        "// halfwarp.kernel symbol={symbol} family={family} \
         maxntid={{maxntid}} minctapersm={{minctapersm}}"
    );
    let mut values = quote!(maxntid = const { #max_threads }, minctapersm = const { #min_blocks });
    if cluster.is_some() {
        fact.push_str(" cluster={x},{y},{z}");
        values.extend(quote! {
            , x = const __CLUSTER[0], y = const __CLUSTER[1], z = const __CLUSTER[2]
        });
    }
    quote!(::core::arch::global_asm!(#fact, #values);)
}

/// What the launcher and the emulator know of the entry. Its body calls the kernel with arguments in
/// the order of its parameters.
fn host_entry(
    function: &ItemFn,
    args: &[Arg<'_>],
    symbol: &Ident,
    generic_args: &[GenericArgument],
    attributes: &Attributes,
) -> TokenStream {
    let Attributes { max_threads, cluster, overlaps, .. } = attributes;
    let kernel = &function.sig.ident;
    let cluster = if cluster.is_some() { quote!(__CLUSTER) } else { quote!([1, 1, 1]) };
    let args = args.iter().map(|_| quote!(args.read()));
    // SAFETY of the expansion: the launch keeps the kernel's requirements, and the emulator checks
    // them.
    quote! {
        pub(super) static ENTRY: ::cuda_std::launch::Entry = ::cuda_std::launch::Entry {
            symbol: stringify!(#symbol),
            max_threads: #max_threads,
            cluster: #cluster,
            overlaps: #overlaps,
            body: ::cuda_std::launch_body!(|args| unsafe {
                super::#kernel::<#(#generic_args),*>(#(#args),*)
            }),
        };
    }
}

fn device_entry(
    function: &ItemFn,
    args: &[Arg<'_>],
    symbol: &Ident,
    generic_args: &[GenericArgument],
) -> TokenStream {
    let body = &function.sig.ident;
    let names: Vec<_> = args.iter().map(|arg| arg.name).collect();
    let types: Vec<_> = args.iter().map(|arg| arg.ty).collect();
    let indices = (0..args.len()).map(Literal::usize_unsuffixed);
    quote! {
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn #symbol(
            #(#names: <#types as ::cuda_std::param::Param>::Entry),*
        ) {
            #(
                let #names = <#types as ::cuda_std::param::Param>::receive(
                    #names,
                    ::cuda_std::param_address!(#symbol, #indices),
                );
            )*
            // SAFETY: the entry is the kernel; the launch keeps the kernel's requirements.
            unsafe { super::#body::<#(#generic_args),*>(#(#names),*) }
        }
    }
}
