//! The host's side: the typed launcher of a kernel.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{GenericArgument, GenericParam, Ident, ItemFn};

use super::Arg;
use super::attributes::{Attributes, Instance};
use super::entries;

/// The module of the kernel's name with its typed launcher.
pub fn launcher(function: &ItemFn, args: &[Arg<'_>], attributes: &Attributes) -> TokenStream {
    let (vis, name) = (&function.vis, &function.sig.ident);
    let names: Vec<_> = args.iter().map(|arg| arg.name).collect();
    let types: Vec<_> = args.iter().map(|arg| arg.ty).collect();
    let module_doc = format!("The typed launcher of [`{name}`](super::{name}()).");
    let symbols = symbols(function, attributes);
    let target = match attributes.target {
        Some(target) => quote!(Some(#target)),
        None => quote!(None),
    };
    let is_generic = !attributes.instances.is_empty();
    let instance_param = is_generic.then(|| quote!(instance: Instance,));
    let symbol = if is_generic { quote!(instance.symbol()) } else { quote!(SYMBOL) };
    let body = for_each_instance(function, attributes, |_, generic_args| {
        // SAFETY of the expansion: the launch keeps the kernel's requirements, and the emulator
        // checks them.
        quote!(unsafe {
            super::#name::<#(#generic_args),*>(
                #(<#types as ::cuda_std::launch::KernelArg>::emulated(#names)),*
            )
        })
    });
    let max_threads = for_each_instance(function, attributes, |symbol, _| {
        let entry = entries::module(symbol);
        quote!(super::#entry::__MAX_THREADS)
    });
    let set_overlaps = attributes.overlaps.then(|| quote!(launch.overlaps = true;));
    let set_cluster = attributes.cluster.as_ref().map(|_| {
        let cluster = for_each_instance(function, attributes, |symbol, _| {
            let entry = entries::module(symbol);
            quote!(super::#entry::__CLUSTER)
        });
        quote!(launch.cluster = #cluster;)
    });
    quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #[doc = #module_doc]
        #vis mod #name {
            #[allow(unused_imports)]
            use super::*;

            #symbols

            /// The only device target that the kernel is compiled for; `None` for all.
            #[allow(dead_code)]
            pub const TARGET: Option<&str> = #target;

            /// The launch with these arguments.
            #[allow(clippy::too_many_arguments)]
            pub fn launch(
                #instance_param
                geometry: ::cuda_std::launch::Geometry,
                #(#names: <#types as ::cuda_std::launch::KernelArg>::Host),*
            ) -> ::cuda_std::launch::Launch {
                #[allow(unused_mut)]
                let mut launch = ::cuda_std::launch::Launch::new(
                    #symbol,
                    #max_threads,
                    geometry,
                    ::cuda_std::launch_body!(#body),
                );
                #set_cluster
                #set_overlaps
                #(<#types as ::cuda_std::launch::KernelArg>::push(&mut launch, #names);)*
                launch
            }
        }
    }
}

/// `value` of the kernel's entry, or of the entry of `instance`.
fn for_each_instance(
    function: &ItemFn,
    attributes: &Attributes,
    value: impl Fn(&Ident, &[GenericArgument]) -> TokenStream,
) -> TokenStream {
    if attributes.instances.is_empty() {
        return value(&function.sig.ident, &[]);
    }
    let symbols = attributes.instances.iter().map(|instance| &instance.symbol);
    let values = attributes.instances.iter().map(|Instance { symbol, args }| value(symbol, args));
    quote!(match instance { #(Instance::#symbols => #values,)* })
}

/// `SYMBOL`, or `Instance` for a generic kernel.
fn symbols(function: &ItemFn, attributes: &Attributes) -> TokenStream {
    let name = &function.sig.ident;
    if attributes.instances.is_empty() {
        return quote! {
            /// The PTX entry.
            pub const SYMBOL: &str = stringify!(#name);
        };
    }
    let symbols: Vec<_> = attributes.instances.iter().map(|instance| &instance.symbol).collect();
    let getters = const_getters(function, &attributes.instances);
    quote! {
        /// The instances of the kernel, each named by its PTX entry.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Instance {
            #(#[doc = concat!("The entry `", stringify!(#symbols), "`.")] #symbols,)*
        }

        impl Instance {
            /// All instances, in the order of the kernel's list.
            pub const ALL: &[Instance] = &[#(Instance::#symbols),*];

            #getters

            /// The PTX entry.
            pub const fn symbol(self) -> &'static str {
                match self {
                    #(Instance::#symbols => stringify!(#symbols),)*
                }
            }
        }
    }
}

/// For each constant parameter of the kernel, a method of `Instance` of its name in lower case.
fn const_getters(function: &ItemFn, instances: &[Instance]) -> TokenStream {
    let params = function.sig.generics.params.iter().enumerate();
    let getter = |(position, param): (usize, &GenericParam)| {
        let GenericParam::Const(param) = param else { return TokenStream::new() };
        let (name, ty) = (&param.ident, &param.ty);
        let doc = format!("`{name}` of the instance.");
        let getter = Ident::new(&name.to_string().to_lowercase(), name.span());
        let symbols = instances.iter().map(|instance| &instance.symbol);
        let values = instances.iter().map(|instance| &instance.args[position]);
        quote! {
            #[doc = #doc]
            pub const fn #getter(self) -> #ty {
                match self {
                    #(Instance::#symbols => #values,)*
                }
            }
        }
    };
    params.map(getter).collect()
}
