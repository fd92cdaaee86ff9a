//! Python's two ways to put values into a format: `'%s' % value` and `'{}'.format(value)`.

use std::iter::Peekable;
use std::str::Chars;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

use super::args::invalid;
use super::python::{Number, items, repr, sign, text};

/// Width and precision at most.
const MAX_WIDTH: usize = 10_000;

/// How one value is written.
#[derive(Clone, Debug, Default)]
struct Spec {
    fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    /// `+` or a space.
    sign: Option<char>,
    alternate: bool,
    width: usize,
    /// `,` or `_`.
    grouping: Option<char>,
    precision: Option<usize>,
    conversion: Option<char>,
}

/// `format % values`.
pub(super) fn percent(format: &str, values: &Value) -> Result<String, Error> {
    let mut out = String::new();
    let is_mapping = values.kind() == ValueKind::Map;
    let mut positional =
        if values.is_tuple() { items(values)? } else { vec![values.clone()] }.into_iter();
    let mut chars = format.chars().peekable();
    let mut used_key = false;
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        let mut keyed = None;
        if chars.next_if_eq(&'(').is_some() {
            let key: String = chars.by_ref().take_while(|char| *char != ')').collect();
            if !is_mapping {
                return Err(invalid("a format with names needs a mapping"));
            }
            keyed = Some(values.get_item(&Value::from(key))?);
            used_key = true;
        }
        let mut next =
            || positional.next().ok_or_else(|| invalid("not enough arguments for the format"));
        let spec = percent_spec(&mut chars, &mut next)?;
        if spec.conversion == Some('%') {
            out.push('%');
            continue;
        }
        let value = keyed.map_or_else(next, Ok)?;
        out.push_str(&percent_value(&value, spec)?);
    }
    // A mapping, or a list, may hold more than the format takes.
    let may_be_left =
        is_mapping || used_key || values.kind() == ValueKind::Seq && !values.is_tuple();
    if positional.next().is_some() && !may_be_left {
        return Err(invalid("not all arguments are used by the format"));
    }
    Ok(out)
}

fn percent_spec(
    chars: &mut Peekable<Chars<'_>>,
    next: &mut impl FnMut() -> Result<Value, Error>,
) -> Result<Spec, Error> {
    let mut spec = Spec::default();
    while let Some(flag) = chars.next_if(|char| "#0- +".contains(*char)) {
        match flag {
            '#' => spec.alternate = true,
            '-' => spec.align = Some('<'),
            '+' => spec.sign = Some('+'),
            ' ' => spec.sign = spec.sign.or(Some(' ')),
            _ if spec.align.is_none() => (spec.fill, spec.align) = (Some('0'), Some('=')),
            _ => {}
        }
    }
    let mut star = |chars: &mut Peekable<Chars<'_>>| match chars.next_if_eq(&'*') {
        None => number(chars),
        Some(_) => Ok(next()?.as_usize().filter(|width| *width <= MAX_WIDTH)),
    };
    spec.width = star(chars)?.unwrap_or(0);
    if chars.next_if_eq(&'.').is_some() {
        spec.precision = Some(star(chars)?.unwrap_or(0));
    }
    while chars.next_if(|char| "hlL".contains(*char)).is_some() {}
    spec.conversion = chars.next();
    Ok(spec)
}

fn percent_value(value: &Value, mut spec: Spec) -> Result<String, Error> {
    let conversion = spec.conversion.ok_or_else(|| invalid("an incomplete format"))?;
    let mut of_text = |text: String| {
        let text = spec.precision.map_or(text.clone(), |len| text.chars().take(len).collect());
        (spec.fill, spec.align) = (None, spec.align.filter(|align| *align == '<').or(Some('>')));
        pad(text, &spec)
    };
    match conversion {
        's' => Ok(of_text(text(value)?)),
        'r' | 'a' => Ok(of_text(repr(value)?)),
        'c' => match (value.as_str(), value.as_i64()) {
            (Some(text), _) if text.chars().count() == 1 => Ok(of_text(text.to_owned())),
            (None, Some(code)) => {
                let char = u32::try_from(code).ok().and_then(char::from_u32);
                let char = char.ok_or_else(|| invalid("%c takes a character"))?;
                Ok(of_text(char.to_string()))
            }
            _ => Err(invalid("%c takes a character")),
        },
        'd' | 'i' | 'u' | 'o' | 'x' | 'X' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let number = Number::of(value).ok_or_else(|| {
                invalid(format!("%{conversion} takes a number, not {}", value.kind()))
            })?;
            let number = match (conversion, number) {
                ('d' | 'i' | 'u', Number::Float(float)) => Number::Int(float as i128),
                _ => number,
            };
            if matches!(conversion, 'i' | 'u') {
                spec.conversion = Some('d');
            }
            spec.align = spec.align.or(Some('>'));
            format_number(number, &spec)
        }
        _ => Err(invalid(format!("the format %{conversion} is unknown"))),
    }
}

fn number(chars: &mut Peekable<Chars<'_>>) -> Result<Option<usize>, Error> {
    let mut digits = String::new();
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    if digits.is_empty() {
        return Ok(None);
    }
    match digits.parse() {
        Ok(number) if number <= MAX_WIDTH => Ok(Some(number)),
        _ => Err(invalid(format!("a format wider than {MAX_WIDTH}"))),
    }
}

/// A number by its conversion.
fn format_number(number: Number, spec: &Spec) -> Result<String, Error> {
    let conversion = spec.conversion.unwrap_or('d');
    let (is_negative, mut body) = match (conversion, number) {
        ('d' | 'n', Number::Int(value)) => (value < 0, value.unsigned_abs().to_string()),
        ('b' | 'o' | 'x' | 'X', Number::Int(value)) => {
            let digits = value.unsigned_abs();
            let (prefix, digits) = match conversion {
                'b' => ("0b", format!("{digits:b}")),
                'o' => ("0o", format!("{digits:o}")),
                'x' => ("0x", format!("{digits:x}")),
                _ => ("0X", format!("{digits:X}")),
            };
            (value < 0, if spec.alternate { format!("{prefix}{digits}") } else { digits })
        }
        ('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%', number) => {
            let value = number.to_f64();
            (value.is_sign_negative() && !value.is_nan(), float(value.abs(), conversion, spec))
        }
        _ => return Err(invalid(format!("the format '{conversion}' takes no such number"))),
    };
    if let Some(separator) = spec.grouping {
        body = grouped(&body, separator);
    }
    let sign = match (is_negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(_)) => " ",
        (false, None) => "",
    };
    if spec.align == Some('=') {
        let fill = spec.width.saturating_sub(sign.len() + body.chars().count());
        let fill = String::from_iter(std::iter::repeat_n(spec.fill.unwrap_or(' '), fill));
        return Ok(format!("{sign}{fill}{body}"));
    }
    let spec = Spec { align: spec.align.or(Some('>')), ..spec.clone() };
    Ok(pad(format!("{sign}{body}"), &spec))
}

/// A float that is not negative.
fn float(value: f64, conversion: char, spec: &Spec) -> String {
    let precision = spec.precision.unwrap_or(6);
    let text = match conversion.to_ascii_lowercase() {
        _ if value.is_nan() => "nan".to_owned(),
        _ if value.is_infinite() => "inf".to_owned(),
        'e' => exponential(value, precision),
        'g' => general(value, precision.max(1), spec.alternate),
        '%' => format!("{:.*}%", precision, value * 100.0),
        _ => format!("{value:.precision$}"),
    };
    if conversion.is_ascii_uppercase() { text.to_uppercase() } else { text }
}

fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    format!("{mantissa}e{}{:02}", sign(exponent), exponent.abs())
}

fn general(value: f64, precision: usize, keeps_zeros: bool) -> String {
    let scientific = format!("{:.*e}", precision - 1, value);
    let exponent = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok());
    let exponent: i64 = exponent.unwrap_or_default();
    let is_scientific = exponent < -4 || exponent >= precision as i64;
    let text = match usize::try_from(precision as i64 - 1 - exponent) {
        Ok(decimals) if !is_scientific => format!("{value:.decimals$}"),
        _ => exponential(value, precision - 1),
    };
    if keeps_zeros || !text.contains('.') {
        return text;
    }
    let (mantissa, exponent) = text.split_at(text.find('e').unwrap_or(text.len()));
    format!("{}{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
}

/// Digits in groups of three.
fn grouped(body: &str, separator: char) -> String {
    let end = body.find(|char: char| !char.is_ascii_digit()).unwrap_or(body.len());
    let (digits, rest) = body.split_at(end);
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(separator);
        }
        out.push(digit);
    }
    out + rest
}

fn pad(text: String, spec: &Spec) -> String {
    let fill = spec.width.saturating_sub(text.chars().count());
    let left = match spec.align {
        Some('>' | '=') => fill,
        Some('^') => fill / 2,
        _ => 0,
    };
    let fill_with = |len| String::from_iter(std::iter::repeat_n(spec.fill.unwrap_or(' '), len));
    fill_with(left) + &text + &fill_with(fill - left)
}

/// `format.format(*positional, **named)`.
pub(super) fn braces(format: &str, args: &[Value]) -> Result<String, Error> {
    let (positional, named) = match args.split_last() {
        Some((last, before)) if last.is_kwargs() => (before, Some(Kwargs::try_from(last.clone())?)),
        _ => (args, None),
    };
    let mut fields = Fields { positional, named, next: 0 };
    fields.format(format, 0)
}

struct Fields<'a> {
    positional: &'a [Value],
    named: Option<Kwargs>,
    /// Index of the next field without a name.
    next: usize,
}

impl Fields<'_> {
    fn format(&mut self, format: &str, depth: usize) -> Result<String, Error> {
        if depth > 1 {
            return Err(invalid("a format inside a format inside a format"));
        }
        let mut out = String::new();
        let mut chars = format.chars().peekable();
        while let Some(char) = chars.next() {
            match char {
                '{' | '}' if chars.next_if_eq(&char).is_some() => out.push(char),
                '{' => {
                    let mut open = 1;
                    let field: String = chars
                        .by_ref()
                        .take_while(|char| {
                            open += i32::from(*char == '{') - i32::from(*char == '}');
                            open > 0
                        })
                        .collect();
                    if open > 0 {
                        return Err(invalid("a format with a '{' that is not closed"));
                    }
                    out.push_str(&self.field(&field, depth)?);
                }
                '}' => return Err(invalid("a format with a single '}'")),
                _ => out.push(char),
            }
        }
        Ok(out)
    }

    fn field(&mut self, field: &str, depth: usize) -> Result<String, Error> {
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let spec = self.format(spec, depth + 1)?;
        let (name, conversion) = name.split_once('!').unwrap_or((name, ""));
        let value = self.value(name)?;
        let value = match conversion {
            "" => value,
            "s" => text(&value)?.into(),
            "r" | "a" => repr(&value)?.into(),
            _ => return Err(invalid(format!("the conversion '!{conversion}' is unknown"))),
        };
        braces_value(&value, &spec)
    }

    /// `0`, `name`, `name.attribute` or `name[item]`.
    fn value(&mut self, path: &str) -> Result<Value, Error> {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (name, mut rest) = path.split_at(end);
        let index = if name.is_empty() {
            self.next += 1;
            Some(self.next - 1)
        } else {
            name.parse::<usize>().ok()
        };
        let found = match index {
            Some(index) => self.positional.get(index).cloned(),
            None => self
                .named
                .as_ref()
                .filter(|named| named.has(name))
                .map(|named| named.get(name))
                .transpose()?,
        };
        let mut value =
            found.ok_or_else(|| invalid(format!("the format has no value for '{{{path}}}'")))?;
        while !rest.is_empty() {
            let (key, after) = match rest.strip_prefix('[') {
                Some(inside) => inside.split_once(']').unwrap_or((inside, "")),
                None => {
                    let inside = &rest[1..];
                    inside.split_at(inside.find(['.', '[']).unwrap_or(inside.len()))
                }
            };
            value = match key.parse::<usize>() {
                Ok(index) => value.get_item_by_index(index)?,
                Err(_) => value.get_attr(key)?,
            };
            rest = after;
            if !rest.is_empty() && !rest.starts_with(['.', '[']) {
                return Err(invalid(format!("the format has a wrong field '{path}'")));
            }
        }
        Ok(value)
    }
}

/// `format(value, spec)`.
fn braces_value(value: &Value, source: &str) -> Result<String, Error> {
    if source.is_empty() {
        return text(value);
    }
    let wrong = || invalid(format!("the format '{source}' is wrong for {}", value.kind()));
    let spec = braces_spec(source).ok_or_else(wrong)?;
    if let Some(text) = value.as_str() {
        if !matches!(spec.conversion, None | Some('s')) || spec.sign.is_some() {
            return Err(wrong());
        }
        let text = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
        return Ok(pad(text, &Spec { align: spec.align.filter(|align| *align != '='), ..spec }));
    }
    let number = Number::of(value).ok_or_else(wrong)?;
    match (number, spec.conversion) {
        (Number::Int(code), Some('c')) => {
            let char = u32::try_from(code).ok().and_then(char::from_u32).ok_or_else(wrong)?;
            Ok(pad(char.to_string(), &spec))
        }
        (Number::Float(float), None) if spec.precision.is_none() => {
            let body = super::python::float_repr(float.abs());
            let body = spec.grouping.map_or(body.clone(), |separator| grouped(&body, separator));
            let sign = if float.is_sign_negative() {
                "-"
            } else if spec.sign == Some('+') {
                "+"
            } else {
                ""
            };
            Ok(pad(format!("{sign}{body}"), &Spec { align: spec.align.or(Some('>')), ..spec }))
        }
        (Number::Float(_), None) => format_number(number, &Spec { conversion: Some('g'), ..spec }),
        (Number::Float(_), Some('n')) => {
            format_number(number, &Spec { conversion: Some('g'), ..spec })
        }
        _ => format_number(number, &spec),
    }
}

/// `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
fn braces_spec(source: &str) -> Option<Spec> {
    let mut spec = Spec::default();
    let mut chars = source.chars().peekable();
    let is_align = |char: &char| "<>^=".contains(*char);
    if source.chars().nth(1).filter(is_align).is_some() {
        spec.fill = chars.next();
    }
    spec.align = chars.next_if(is_align);
    spec.sign = chars.next_if(|char| "+- ".contains(*char)).filter(|sign| *sign != '-');
    spec.alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() && spec.align.is_none() {
        (spec.fill, spec.align) = (spec.fill.or(Some('0')), Some('='));
    }
    spec.width = number(&mut chars).ok()?.unwrap_or(0);
    spec.grouping = chars.next_if(|char| ",_".contains(*char));
    if chars.next_if_eq(&'.').is_some() {
        spec.precision = Some(number(&mut chars).ok()??);
    }
    spec.conversion = chars.next();
    chars.next().is_none().then_some(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_bounded() {
        assert!(percent("%99999d", &Value::from(1)).is_err());
        assert!(braces("{:99999999999999999999}", &[Value::from(1)]).is_err());
        assert!(braces("{:{:{}}}", &[Value::from(1)]).is_err());
    }
}
