//! `#[kernel]`.

mod attributes;
mod entries;
mod instances;
mod launcher;
mod sets;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::spanned::Spanned;
use syn::{Error, FnArg, Ident, ItemFn, Pat, Result};

use attributes::Attributes;

/// The function, its device entries and its host launcher.
pub fn expand(attr: TokenStream, item: TokenStream) -> Result<TokenStream> {
    if let Some(expanded) = sets::expand(&attr, &item) {
        return Ok(expanded);
    }
    let attributes: Attributes = syn::parse2(attr)?;
    let mut function: ItemFn = syn::parse2(item)?;
    let args = check(&function, &attributes)?;
    let entries = entries::entries(&function, &args, &attributes);
    let launcher = launcher::launcher(&function, &args, &attributes);
    function.attrs.push(syn::parse_quote!(#[allow(clippy::too_many_arguments)]));
    function.attrs.push(syn::parse_quote!(#[cfg_attr(target_arch = "nvptx64", inline(always))]));
    // On the host an instance stays a function of the kernel's module, which rustc compiles beside
    // other modules, and again only when it has changed.
    function
        .attrs
        .push(syn::parse_quote!(#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]));
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

/// Whether `name` is one of the tokens.
fn names(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => names(group.stream(), name),
        _ => false,
    })
}

/// Whether the kernel's source calls `wait_for_dependencies`, as an overlapping launch must.
fn waits(function: &ItemFn) -> bool {
    let name = Ident::new("wait_for_dependencies", Span::call_site());
    names(function.block.to_token_stream(), &name)
}

/// Rejects functions that cannot be a PTX entry; returns the parameters.
fn check<'a>(function: &'a ItemFn, attributes: &Attributes) -> Result<Vec<Arg<'a>>> {
    let sig = &function.sig;
    if sig.unsafety.is_none() {
        return refuse(
            sig.fn_token.span(),
            "a kernel is an `unsafe fn`: \
             its launcher promises that its views are long enough",
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
        return refuse(
            lifetime.span(),
            "a kernel has no lifetime parameters: its views are pointers",
        );
    }
    if attributes.overlaps && !waits(function) {
        return refuse(
            sig.ident.span(),
            "a kernel that `overlaps` calls `grid::wait_for_dependencies()` in every block, before \
             it accesses memory that other launches access",
        );
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
            FnArg::Receiver(receiver) => refuse(receiver.span(), "a kernel cannot be a method"),
        })
        .collect()
}
