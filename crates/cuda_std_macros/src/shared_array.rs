//! `shared_array![T; LEN]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Numbers the arrays of a crate: a PTX declaration needs a unique name, also in an inlined
/// function.
static NEXT_ARRAY: AtomicUsize = AtomicUsize::new(0);

/// The declaration at module level of the PTX, and the view at its address.
pub fn expand(input: TokenStream) -> syn::Result<TokenStream> {
    let syn::TypeArray { elem, len, .. } = syn::parse2(quote!([#input])).map_err(|error| {
        syn::Error::new(
            error.span(),
            "expected `shared_array![type; length]`, as `shared_array![f32; 32]`",
        )
    })?;
    let number = NEXT_ARRAY.fetch_add(1, Ordering::Relaxed);
    let module = format_ident!("__shared_array_{number}");
    let declare = format!(".shared .align 16 .b8 halfwarp_shared_{number}[{{bytes}}];");
    let address = format!("mov.u32 {{}}, halfwarp_shared_{number};");
    Ok(quote! {{
        #[cfg(target_arch = "nvptx64")]
        mod #module {
            #[allow(unused_imports)]
            use super::*;
            ::core::arch::global_asm!(#declare, bytes = const ::core::mem::size_of::<#elem>() * (#len));
        }
        #[cfg(target_arch = "nvptx64")]
        let array = {
            let address: u32;
            ::core::arch::asm!(
                #address, out(reg32) address, options(pure, nomem, nostack, preserves_flags)
            );
            ::cuda_std::Shared::<#elem>::from_address(address)
        };
        #[cfg(not(target_arch = "nvptx64"))]
        let array = ::cuda_std::shared::static_shared_mem::<#elem>(
            ::core::module_path!(), #number, #len
        );
        array
    }})
}
