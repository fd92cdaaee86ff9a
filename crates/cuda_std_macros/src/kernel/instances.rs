//! The list of a generic kernel's instances: `E in [f16, bf16], gemm_{E} = <E, Tile>`.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{AngleBracketedGenericArguments, Error, GenericArgument, Ident, LitStr, Result, Token};

/// One entry of a generic kernel.
pub struct Instance {
    pub symbol: Ident,
    pub args: Vec<GenericArgument>,
}

/// The instances of a list, in its order; those of one line by its variables, the last one fastest.
pub fn parse(input: ParseStream<'_>) -> Result<Vec<Instance>> {
    let (mut variables, mut instances) = (Vec::<Variable>::new(), Vec::new());
    for line in Punctuated::<Line, Token![,]>::parse_terminated(input)? {
        match line {
            Line::Variable(variable) => variables.push(variable),
            Line::Template(template) => template.expand(&variables, &[], &mut instances)?,
            Line::Except(symbols) => {
                for symbol in symbols {
                    let place = instances.iter().position(|instance| instance.symbol == symbol);
                    let missing =
                        || Error::new(symbol.span(), "no instance before has this symbol");
                    instances.remove(place.ok_or_else(missing)?);
                }
            }
        }
    }
    Ok(instances)
}

enum Line {
    Variable(Variable),
    Template(Template),
    /// `except(gemm_f16, ..)`: symbols that are left out.
    Except(Vec<Ident>),
}

syn::custom_keyword!(except);

/// `O in [E as "", f32 as "_f32"]`: generic arguments, each with its text in symbols.
struct Variable {
    name: Ident,
    values: Vec<Value>,
}

#[derive(Clone)]
struct Value {
    arg: TokenStream,
    /// If it is not the argument itself.
    text: Option<String>,
}

/// `gemm_{E} = <E, Tile>`.
struct Template {
    symbol: Vec<TokenTree>,
    span: Span,
    args: Vec<GenericArgument>,
}

/// A variable's name and its value, with no variables in it.
type Binding = (Ident, Value);

impl Parse for Line {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek2(Token![in]) {
            let name = input.parse()?;
            input.parse::<Token![in]>()?;
            let content;
            syn::bracketed!(content in input);
            let values = Punctuated::<Value, Token![,]>::parse_terminated(&content)?;
            return Ok(Line::Variable(Variable { name, values: values.into_iter().collect() }));
        }
        if input.peek2(syn::token::Paren) {
            input.parse::<except>()?;
            let content;
            syn::parenthesized!(content in input);
            let symbols = Punctuated::<Ident, Token![,]>::parse_terminated(&content)?;
            return Ok(Line::Except(symbols.into_iter().collect()));
        }
        let (span, mut symbol) = (input.span(), Vec::new());
        while !input.peek(Token![=]) {
            symbol.push(input.parse()?);
        }
        input.parse::<Token![=]>()?;
        let args = input.parse::<AngleBracketedGenericArguments>()?.args.into_iter().collect();
        Ok(Line::Template(Template { symbol, span, args }))
    }
}

impl Parse for Value {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let arg = input.parse::<GenericArgument>()?.into_token_stream();
        let has_text = input.parse::<Option<Token![as]>>()?.is_some();
        let text = if has_text { Some(input.parse::<LitStr>()?.value()) } else { None };
        Ok(Value { arg, text })
    }
}

impl Template {
    /// Adds an instance for every value of the variables that the symbol names.
    fn expand(
        &self,
        variables: &[Variable],
        bindings: &[Binding],
        instances: &mut Vec<Instance>,
    ) -> Result<()> {
        let Some((variable, others)) = variables.split_first() else {
            instances.push(self.instance(bindings)?);
            return Ok(());
        };
        if !self.symbol.iter().any(|piece| named(piece).is_some_and(|name| name == variable.name)) {
            return self.expand(others, bindings, instances);
        }
        for Value { arg, text } in &variable.values {
            let arg = substitute(arg.clone(), &|name| arg_of(bindings, name));
            let value = Value { arg, text: text.clone() };
            let mut bindings = bindings.to_vec();
            bindings.push((variable.name.clone(), value));
            self.expand(others, &bindings, instances)?;
        }
        Ok(())
    }

    fn instance(&self, bindings: &[Binding]) -> Result<Instance> {
        let mut symbol = String::new();
        for piece in &self.symbol {
            let Some(name) = named(piece) else {
                symbol.push_str(&piece.to_string());
                continue;
            };
            let bound = bindings.iter().find(|(variable, _)| *variable == name);
            let (_, value) = bound.ok_or_else(|| {
                Error::new(name.span(), format!("no line `{name} in [..]` precedes this one"))
            })?;
            symbol.push_str(&value.text.clone().unwrap_or_else(|| value.arg.to_string()));
        }
        let args = self.args.iter().map(|arg| {
            let arg = arg.to_token_stream();
            syn::parse2(substitute(arg, &|name| arg_of(bindings, name)))
        });
        let mut symbol = syn::parse_str::<Ident>(&symbol)
            .map_err(|_| Error::new(self.span, format!("`{symbol}` is no symbol")))?;
        symbol.set_span(self.span);
        Ok(Instance { symbol, args: args.collect::<Result<_>>()? })
    }
}

fn arg_of(bindings: &[Binding], name: &Ident) -> Option<TokenStream> {
    bindings.iter().find(|(variable, _)| variable == name).map(|(_, value)| value.arg.clone())
}

/// The variable in braces.
fn named(piece: &TokenTree) -> Option<Ident> {
    match piece {
        TokenTree::Group(group) => syn::parse2(group.stream()).ok(),
        _ => None,
    }
}

/// `tokens` with what `value` gives for names.
fn substitute(tokens: TokenStream, value: &impl Fn(&Ident) -> Option<TokenStream>) -> TokenStream {
    let substituted = |token| match token {
        TokenTree::Ident(name) => value(&name).unwrap_or_else(|| name.into_token_stream()),
        TokenTree::Group(group) => {
            Group::new(group.delimiter(), substitute(group.stream(), value)).into_token_stream()
        }
        other => other.into_token_stream(),
    };
    tokens.into_iter().map(substituted).collect()
}
