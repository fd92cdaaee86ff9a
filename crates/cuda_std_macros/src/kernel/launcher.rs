//! The host's side: the typed launcher of a kernel.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{GenericParam, Ident, ItemFn};

use super::attributes::Attributes;
use super::entries;
use super::instances::Instance;
use super::{Arg, names};

/// The module of the kernel's name with its typed launcher.
pub fn launcher(function: &ItemFn, args: &[Arg<'_>], attributes: &Attributes) -> TokenStream {
    let (vis, name) = (&function.vis, &function.sig.ident);
    let names: Vec<_> = args.iter().map(|arg| arg.name).collect();
    let types: Vec<_> = args.iter().map(|arg| arg.ty).collect();
    let docs = names.iter().map(|name| format!("`{name}` of the kernel."));
    let module_doc = format!("The typed launcher of [`{name}`](super::{name}()).");
    let args_doc = format!("The arguments of [`{name}`](super::{name}()).");
    let symbols = symbols(function, attributes);
    let target = match attributes.target {
        Some(target) => quote!(Some(#target)),
        None => quote!(None),
    };
    let is_generic = !attributes.instances.is_empty();
    let instance_param = is_generic.then(|| quote!(instance: Instance,));
    let entry = if is_generic {
        quote!(instance.entry())
    } else {
        let module = entries::module(name);
        quote!(&super::#module::ENTRY)
    };
    let elements = elements(function, &types);
    let generics = (!elements.is_empty()).then(|| quote!(<#(#elements),*>));
    let bounds = generics.as_ref().map(|_| quote!(<#(#elements: Send + Sync + 'static),*>));
    let getters = elements.iter().map(|element| getter_name(element));
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

            #[doc = #args_doc]
            pub struct Args #bounds {
                #(#[doc = #docs] pub #names: <#types as ::cuda_std::launch::KernelArg>::Host,)*
            }

            impl #bounds Args #generics {
                /// The launch with these arguments.
                ///
                /// # Panics
                /// If the instance has other element types.
                pub fn launch(
                    self,
                    #instance_param
                    geometry: ::cuda_std::launch::Geometry,
                ) -> ::cuda_std::launch::Launch {
                    #(assert!(
                        instance.#getters() == ::core::any::TypeId::of::<#elements>(),
                        "`{}` has other element types",
                        instance.symbol(),
                    );)*
                    let Args { #(#names),* } = self;
                    let mut launch = ::cuda_std::launch::Launch::new(#entry, geometry);
                    #(<#types as ::cuda_std::launch::KernelArg>::push(&mut launch, #names);)*
                    launch
                }
            }
        }
    }
}

/// The type parameters of the kernel that its parameters' types name.
fn elements<'a>(function: &'a ItemFn, types: &[&syn::Type]) -> Vec<&'a Ident> {
    let params = function.sig.generics.type_params().map(|param| &param.ident);
    params.filter(|param| names(quote!(#(#types)*), param)).collect()
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
    let modules = symbols.iter().map(|symbol| entries::module(symbol));
    let getters = getters(function, &attributes.instances);
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

            /// The one that `is_it` says, the first of several.
            #[allow(dead_code)]
            pub fn find(is_it: impl Fn(Instance) -> bool) -> Option<Instance> {
                Self::ALL.iter().copied().find(|&instance| is_it(instance))
            }

            /// The name of the PTX entry.
            pub const fn symbol(self) -> &'static str {
                self.entry().symbol
            }

            /// The PTX entry.
            pub const fn entry(self) -> &'static ::cuda_std::launch::Entry {
                const ENTRIES: &[&::cuda_std::launch::Entry] = &[#(&super::#modules::ENTRY),*];
                ENTRIES[self as usize]
            }
        }
    }
}

/// For each generic parameter of the kernel, a method of `Instance` of its name in lower case: the
/// value of a constant, the identity of a type.
fn getters(function: &ItemFn, instances: &[Instance]) -> TokenStream {
    let params = function.sig.generics.params.iter().enumerate();
    let getter = |(position, param): (usize, &GenericParam)| {
        let args = instances.iter().map(|instance| &instance.args[position]);
        let (name, ty, values): (_, _, Vec<_>) = match param {
            GenericParam::Const(param) => {
                let ty = &param.ty;
                (&param.ident, quote!(#ty), args.map(|value| quote!(#value)).collect())
            }
            GenericParam::Type(param) => {
                let id = quote!(::core::any::TypeId);
                let values = args.map(|ty| quote!(#id::of::<#ty>())).collect();
                (&param.ident, id, values)
            }
            GenericParam::Lifetime(_) => return TokenStream::new(),
        };
        let doc = format!("`{name}` of the instance.");
        let getter = getter_name(name);
        quote! {
            #[doc = #doc]
            #[allow(dead_code)]
            pub const fn #getter(self) -> #ty {
                const VALUES: &[#ty] = &[#(#values),*];
                VALUES[self as usize]
            }
        }
    };
    params.map(getter).collect()
}

fn getter_name(param: &Ident) -> Ident {
    Ident::new(&param.to_string().to_lowercase(), param.span())
}
