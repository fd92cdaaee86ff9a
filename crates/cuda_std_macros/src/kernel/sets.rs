//! Values of a variable by the name of a set: `F in BLOCKS`.
//!
//! A macro cannot read a constant. So a set is a macro that writes its values in place of its name, and
//! `#[kernel]` again: the kernel in the source stays an ordinary function.

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::quote;

/// The call of the first set that the options name, if they name one.
pub fn expand(attr: &TokenStream, item: &TokenStream) -> Option<TokenStream> {
    let tokens: Vec<TokenTree> = attr.clone().into_iter().collect();
    let place = tokens.windows(2).position(|pair| is_ident(&pair[0], "instances"))?;
    let TokenTree::Group(list) = &tokens[place + 1] else { return None };
    let (before, name, after) = split(list)?;
    let (first, last) = (&tokens[..place], &tokens[place + 2..]);
    Some(quote!(#name! { { #(#first)* } { #before } { #after } { #(#last)* } #item }))
}

/// The name of the first set in a list of instances, with what is before and after it.
fn split(list: &Group) -> Option<(TokenStream, TokenTree, TokenStream)> {
    let tokens: Vec<TokenTree> = list.stream().into_iter().collect();
    let is_set =
        |pair: &[TokenTree]| is_ident(&pair[0], "in") && matches!(pair[1], TokenTree::Ident(_));
    let place = tokens.windows(2).position(is_set)? + 1;
    let part = |tokens: &[TokenTree]| tokens.iter().cloned().collect();
    Some((part(&tokens[..place]), tokens[place].clone(), part(&tokens[place + 1..])))
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == name)
}
