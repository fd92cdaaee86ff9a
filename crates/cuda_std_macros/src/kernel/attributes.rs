//! The options of `#[kernel(..)]`.

use proc_macro2::Span;
use syn::parse::{Parse, ParseBuffer, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, Ident, Result, Token};

use super::instances::{self, Instance};

/// The targets that a kernel can name.
const TARGETS: [&str; 2] = ["sm_80", SM_90A];
const SM_90A: &str = "sm_90a";

/// The options of a kernel.
pub struct Attributes {
    pub max_threads: Expr,
    pub min_blocks: Expr,
    /// The only target that the kernel is compiled for; `None` for all.
    pub target: Option<&'static str>,
    /// Blocks of a cluster in x, y, z.
    pub cluster: Option<[Expr; 3]>,
    /// Whether the kernel itself waits for the previous launches.
    pub overlaps: bool,
    pub instances: Vec<Instance>,
}

impl Parse for Attributes {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let (mut bounds, mut target, mut cluster) = (None, None, None);
        let (mut overlaps, mut instances) = (false, Vec::new());
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            match &*name.to_string() {
                "launch_bounds" => bounds = Some(launch_bounds(&name, &arguments(input)?)?),
                "target" => target = Some(self::target(&arguments(input)?)?),
                "cluster" => {
                    cluster = Some((name.span(), self::cluster(&name, &arguments(input)?)?));
                }
                "overlaps" => overlaps = true,
                "instances" => instances = instances::parse(&arguments(input)?)?,
                other => {
                    let why = format!(
                        "unknown option `{other}`: `launch_bounds`, `target`, `cluster`, \
                         `overlaps` and `instances` are known"
                    );
                    return Err(Error::new(name.span(), why));
                }
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
        if let Some((span, _)) = &cluster
            && target != Some(SM_90A)
        {
            let why = "only `sm_90a` has clusters: add `target(sm_90a)`";
            return Err(Error::new(*span, why));
        }
        let cluster = cluster.map(|(_, cluster)| cluster);
        Ok(Attributes { max_threads, min_blocks, target, cluster, overlaps, instances })
    }
}

/// The arguments in parentheses after an option.
fn arguments<'a>(input: ParseStream<'a>) -> Result<ParseBuffer<'a>> {
    let content;
    syn::parenthesized!(content in input);
    Ok(content)
}

/// A comma-separated list.
fn list<T: Parse>(content: &ParseBuffer<'_>) -> Result<Vec<T>> {
    Ok(Punctuated::<T, Token![,]>::parse_terminated(content)?.into_iter().collect())
}

fn launch_bounds(name: &Ident, content: &ParseBuffer<'_>) -> Result<(Expr, Expr)> {
    let mut args = list(content)?.into_iter();
    match (args.next(), args.next(), args.next()) {
        (Some(max_threads), min_blocks, None) => {
            Ok((max_threads, min_blocks.unwrap_or_else(|| syn::parse_quote!(1))))
        }
        _ => Err(Error::new(
            name.span(),
            "expected `launch_bounds(max_threads)` or `launch_bounds(max_threads, min_blocks)`",
        )),
    }
}

fn target(content: &ParseBuffer<'_>) -> Result<&'static str> {
    let target: Ident = content.parse()?;
    let known = TARGETS.into_iter().find(|known| target == known);
    known.filter(|_| content.is_empty()).ok_or_else(|| {
        let why = "expected `target(sm_80)` or `target(sm_90a)`; without it every target is meant";
        Error::new(target.span(), why)
    })
}

fn cluster(name: &Ident, content: &ParseBuffer<'_>) -> Result<[Expr; 3]> {
    <[Expr; 3]>::try_from(list(content)?)
        .map_err(|_| Error::new(name.span(), "expected `cluster(x, y, z)`, in blocks"))
}
