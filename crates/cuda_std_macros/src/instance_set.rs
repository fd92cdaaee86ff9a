//! `instance_set!`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Ident, Result, Token, Visibility, bracketed};

/// `/// Docs. pub(crate) HALVES = [f16, bf16];`
struct Set {
    docs: Vec<Attribute>,
    visibility: Visibility,
    name: Ident,
    values: TokenStream,
}

impl Parse for Set {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let docs = input.call(Attribute::parse_outer)?;
        let (visibility, name) = (input.parse()?, input.parse()?);
        input.parse::<Token![=]>()?;
        let content;
        bracketed!(content in input);
        let values = content.parse()?;
        input.parse::<Option<Token![;]>>()?;
        Ok(Set { docs, visibility, name, values })
    }
}

/// A macro of the set's name: see `kernel/sets.rs` for its first form.
pub fn expand(input: TokenStream) -> Result<TokenStream> {
    let Set { docs, visibility, name, values } = syn::parse2(input)?;
    Ok(quote! {
        #(#docs)*
        #[allow(unused_macros)]
        macro_rules! #name {
            ({ $($first:tt)* } { $($before:tt)* } { $($after:tt)* } { $($last:tt)* } $($item:tt)*) => {
                #[::cuda_std::kernel(
                    $($first)* instances($($before)* [#values] $($after)*) $($last)*
                )]
                $($item)*
            };
            ($callback:ident $($args:tt)*) => {
                $callback! { [#values] $($args)* }
            };
        }
        #[allow(unused_imports)]
        #visibility use #name;
    })
}
