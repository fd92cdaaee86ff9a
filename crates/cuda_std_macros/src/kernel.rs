//! `#[kernel]`.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, FnArg, GenericArgument, GenericParam, Ident, ItemFn, Pat, Result, Token};

/// What stands in the parentheses of `#[kernel(..)]`.
struct Attributes {
    max_threads: Expr,
    min_blocks: Expr,
    instances: Vec<Instance>,
}

/// One entry of a generic kernel: `symbol = <args>`.
struct Instance {
    symbol: Ident,
    args: Vec<GenericArgument>,
}

impl Parse for Instance {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let symbol = input.parse()?;
        input.parse::<Token![=]>()?;
        let args: syn::AngleBracketedGenericArguments = input.parse()?;
        Ok(Instance { symbol, args: args.args.into_iter().collect() })
    }
}

impl Parse for Attributes {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut bounds = None;
        let mut instances = Vec::new();
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            let content;
            syn::parenthesized!(content in input);
            if name == "launch_bounds" {
                let args = Punctuated::<Expr, Token![,]>::parse_terminated(&content)?;
                let mut args_iter = args.iter().cloned();
                bounds = match (args_iter.next(), args_iter.next(), args_iter.next()) {
                    (Some(max_threads), min_blocks, None) => {
                        Some((max_threads, min_blocks.unwrap_or_else(|| syn::parse_quote!(1))))
                    }
                    _ => {
                        return Err(Error::new(
                            name.span(),
                            "expected `launch_bounds(max_threads)` or \
                             `launch_bounds(max_threads, min_blocks)`",
                        ));
                    }
                };
            } else if name == "instances" {
                instances = Punctuated::<Instance, Token![,]>::parse_terminated(&content)?
                    .into_iter()
                    .collect();
            } else {
                return Err(Error::new(
                    name.span(),
                    format!("unknown option `{name}`: `launch_bounds` and `instances` are known"),
                ));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let (max_threads, min_blocks) = bounds.ok_or_else(|| {
            Error::new(
                Span::call_site(),
                "a kernel states its launch bounds: \
                 `#[kernel(launch_bounds(max_threads, min_blocks))]`",
            )
        })?;
        Ok(Attributes { max_threads, min_blocks, instances })
    }
}

/// The function, its device entries and its host launcher.
pub fn expand(attr: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let attributes: Attributes = syn::parse2(attr)?;
    let mut function: ItemFn = syn::parse2(item)?;
    let args = check(&function, &attributes)?;
    let entries = entries(&function, &args, &attributes);
    let launcher = launcher(&function, &args, &attributes);
    function.attrs.push(syn::parse_quote!(#[allow(clippy::too_many_arguments)]));
    function.attrs.push(syn::parse_quote!(#[inline(always)]));
    Ok(quote! {
        #function
        #entries
        #launcher
    })
}

/// A parameter of a kernel.
struct Arg<'a> {
    name: &'a Ident,
    ty: &'a syn::Type,
}

/// An error at `span`.
fn refuse<T>(span: Span, why: &str) -> Result<T> {
    Err(Error::new(span, why))
}

/// Refuses what no PTX entry can be; gives the parameters.
fn check<'a>(function: &'a ItemFn, attributes: &Attributes) -> Result<Vec<Arg<'a>>> {
    let sig = &function.sig;
    if sig.unsafety.is_none() {
        return refuse(
            sig.fn_token.span(),
            "a kernel is an `unsafe fn`: \
             that its views are as long as it thinks is its launcher's promise",
        );
    }
    if let syn::ReturnType::Type(_, ty) = &sig.output {
        return refuse(
            ty.span(),
            "a kernel returns nothing: it writes its results to a `GlobalMut`",
        );
    }
    if let Some(keyword) = sig.asyncness.map(|t| t.span()).or(sig.constness.map(|t| t.span())) {
        return refuse(keyword, "a kernel is neither `async` nor `const`");
    }
    if let Some(abi) = &sig.abi {
        return refuse(abi.span(), "`#[kernel]` sets the ABI of the entry itself");
    }
    if let Some(lifetime) = sig.generics.lifetimes().next() {
        return refuse(lifetime.span(), "a kernel has no lifetimes: its views are plain pointers");
    }
    let num_generics = sig.generics.params.len();
    if num_generics > 0 && attributes.instances.is_empty() {
        return refuse(
            sig.generics.span(),
            "a generic kernel lists its instances: \
             `#[kernel(launch_bounds(..), instances(symbol = <..>))]`",
        );
    }
    for instance in &attributes.instances {
        if instance.args.len() != num_generics {
            return refuse(
                instance.symbol.span(),
                &format!(
                    "`{}` has {} generic arguments, the kernel {num_generics} generic parameters",
                    instance.symbol,
                    instance.args.len()
                ),
            );
        }
    }
    sig.inputs
        .iter()
        .map(|input| match input {
            FnArg::Typed(arg) => match &*arg.pat {
                Pat::Ident(pat) if pat.by_ref.is_none() && pat.subpat.is_none() => {
                    Ok(Arg { name: &pat.ident, ty: &arg.ty })
                }
                other => refuse(other.span(), "a kernel's parameter is a plain name"),
            },
            FnArg::Receiver(receiver) => refuse(receiver.span(), "a kernel is no method"),
        })
        .collect()
}

/// The path component under `src` of the file that the kernel stands in: `src/gemm/f32.rs` gives
/// `gemm`. A file outside of a `src` gives its own name.
fn family() -> String {
    let file = Span::call_site().unwrap().file();
    let path = file
        .rsplit_once("src/")
        .map_or_else(|| file.rsplit('/').next().unwrap_or_default(), |(_, under_src)| under_src);
    let component = path.split('/').next().unwrap_or_default();
    component.strip_suffix(".rs").unwrap_or(component).to_owned()
}

/// The `ptx-kernel` entries, the facts for `cuda_builder`, and on both targets a check of the
/// bounds.
fn entries(function: &ItemFn, args: &[Arg<'_>], attributes: &Attributes) -> TokenStream {
    let (body, family) = (&function.sig.ident, family());
    let Attributes { max_threads, min_blocks, instances } = attributes;
    let names: Vec<_> = args.iter().map(|arg| arg.name).collect();
    let types: Vec<_> = args.iter().map(|arg| arg.ty).collect();
    let entry = |symbol: &Ident, generic_args: &[GenericArgument]| {
        let module = format_ident!("__entry_{symbol}");
        let fact = format!(
            "// halfwarp.kernel symbol={symbol} family={family} \
             maxntid={{maxntid}} minctapersm={{minctapersm}}"
        );
        // The bounds are written in terms of the kernel's generic parameters: here those are the
        // instance's.
        let bindings =
            function.sig.generics.params.iter().zip(generic_args).map(|(param, arg)| match param {
                GenericParam::Type(param) => {
                    let name = &param.ident;
                    quote!(#[allow(dead_code)] type #name = #arg;)
                }
                GenericParam::Const(param) => {
                    let (name, ty) = (&param.ident, &param.ty);
                    quote!(#[allow(dead_code)] const #name: #ty = #arg;)
                }
                GenericParam::Lifetime(_) => TokenStream::new(),
            });
        quote! {
            mod #module {
                #[allow(unused_imports)]
                use super::*;
                #(#bindings)*
                const _: () = assert!(
                    (#max_threads) >= 1 && (#max_threads) <= 1024 && (#min_blocks) >= 1,
                    "launch bounds are 1 to 1024 threads and at least 1 block"
                );
                #[cfg(target_arch = "nvptx64")]
                ::core::arch::global_asm!(
                    #fact, maxntid = const { #max_threads }, minctapersm = const { #min_blocks }
                );
                #[cfg(target_arch = "nvptx64")]
                #[unsafe(no_mangle)]
                unsafe extern "ptx-kernel" fn #symbol(#(#names: #types),*) {
                    // SAFETY: the entry is the kernel: what it asks of its launch is the launch's
                    // to keep.
                    unsafe { super::#body::<#(#generic_args),*>(#(#names),*) }
                }
            }
        }
    };
    if instances.is_empty() {
        entry(body, &[])
    } else {
        instances.iter().map(|instance| entry(&instance.symbol, &instance.args)).collect()
    }
}

/// The module of the kernel's name with its typed launcher.
fn launcher(function: &ItemFn, args: &[Arg<'_>], attributes: &Attributes) -> TokenStream {
    let (vis, name) = (&function.vis, &function.sig.ident);
    let names: Vec<_> = args.iter().map(|arg| arg.name).collect();
    let types: Vec<_> = args.iter().map(|arg| arg.ty).collect();
    let symbols: Vec<_> = attributes.instances.iter().map(|instance| &instance.symbol).collect();
    let module_doc = format!("The typed launcher of [`{name}`](super::{name}()).");
    let getters = const_getters(function, &attributes.instances);
    let call = |generic_args: &[GenericArgument]| {
        // SAFETY of what this expands to: what the kernel asks of its launch is the launch's to
        // keep, and the emulator's to check.
        quote!(unsafe {
            super::#name::<#(#generic_args),*>(
                #(<#types as ::cuda_std::launch::KernelArg>::emulated(#names)),*
            )
        })
    };
    let (symbol, instance_param, symbol_value, body);
    if symbols.is_empty() {
        symbol = quote! {
            /// The PTX entry.
            pub const SYMBOL: &str = stringify!(#name);
        };
        instance_param = TokenStream::new();
        symbol_value = quote!(SYMBOL);
        body = call(&[]);
    } else {
        symbol = quote! {
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
        };
        instance_param = quote!(instance: Instance,);
        symbol_value = quote!(instance.symbol());
        let calls = attributes.instances.iter().map(|instance| call(&instance.args));
        body = quote!(match instance {
            #(Instance::#symbols => #calls,)*
        });
    }
    quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #[doc = #module_doc]
        #vis mod #name {
            #[allow(unused_imports)]
            use super::*;

            #symbol

            /// The launch with these arguments.
            #[allow(clippy::too_many_arguments)]
            pub fn launch(
                #instance_param
                geometry: ::cuda_std::launch::Geometry,
                #(#names: <#types as ::cuda_std::launch::KernelArg>::Host),*
            ) -> ::cuda_std::launch::Launch {
                #[allow(unused_mut)]
                let mut launch = ::cuda_std::launch::Launch::new(
                    #symbol_value,
                    geometry,
                    ::cuda_std::launch::Body::new(move || #body),
                );
                #(<#types as ::cuda_std::launch::KernelArg>::push(&mut launch, #names);)*
                launch
            }
        }
    }
}

/// For each constant parameter of the kernel a method of `Instance`, of its name in lower case.
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
