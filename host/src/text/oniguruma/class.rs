//! Sets of characters, by the names that Oniguruma has for them.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

/// The characters from `first` to `last` of each pair.
pub(super) fn set(pairs: &[(char, char)]) -> ClassUnicode {
    ClassUnicode::new(pairs.iter().map(|&(first, last)| ClassUnicodeRange::new(first, last)))
}

/// Every character but those of `set`.
pub(super) fn not(mut set: ClassUnicode) -> ClassUnicode {
    set.negate();
    set
}

/// The set of `\w`, `\d`, `\s` or `\h`, in brackets if `in_set`; in upper case, all others.
pub(super) fn shorthand(letter: char, in_set: bool) -> Option<ClassUnicode> {
    let set = match letter.to_ascii_lowercase() {
        'w' => word(in_set),
        'd' => posix("digit"),
        's' => posix("space"),
        'h' => posix("xdigit"),
        _ => None,
    }?;
    Some(if letter.is_ascii_uppercase() { not(set) } else { set })
}

/// The characters of words. Outside of brackets a table for Latin-1 is asked first, which has the
/// numbers `²³¹¼½¾`, too.
pub(super) fn word(in_set: bool) -> Option<ClassUnicode> {
    let mut word = posix("word")?;
    if !in_set {
        word.union(&set(&[('²', '³'), ('¹', '¹'), ('¼', '¾')]));
    }
    Some(word)
}

/// The set of `[[:name:]]`.
pub(super) fn posix(name: &str) -> Option<ClassUnicode> {
    let named = |name| unicode(name);
    let union = |names: &[&str]| {
        names.iter().try_fold(ClassUnicode::empty(), |mut all, name| {
            all.union(&unicode(name)?);
            Some(all)
        })
    };
    match name {
        "alpha" => named("Alphabetic"),
        "alnum" => union(&["Alphabetic", "Nd"]),
        "ascii" => Some(set(&[('\0', '\x7F')])),
        "blank" => {
            let mut blank = named("Zs")?;
            blank.push(ClassUnicodeRange::new('\t', '\t'));
            Some(blank)
        }
        "cntrl" => named("Cc"),
        "digit" => named("Nd"),
        "graph" => union(&["White_Space", "Cc", "Cn"]).map(not),
        "lower" => named("Lowercase"),
        "print" => union(&["Zl", "Zp", "Cc", "Cn"]).map(not),
        "punct" => union(&["P", "S"]),
        "space" => named("White_Space"),
        "upper" => named("Uppercase"),
        "word" => union(&["Alphabetic", "M", "Nd", "Pc"]),
        "xdigit" => Some(set(&[('0', '9'), ('A', 'F'), ('a', 'f')])),
        _ => None,
    }
}

/// The set of `\p{name}`: a general category, a script, a binary property or a POSIX bracket.
pub(super) fn property(name: &str, in_set: bool) -> Option<ClassUnicode> {
    let key: String = name.chars().filter(|char| !matches!(char, ' ' | '-' | '_')).collect();
    let key = key.to_ascii_lowercase();
    match &key[..] {
        // `\p{Punct}` is the general category, and leaves symbols out.
        "punct" => unicode("P"),
        "word" => word(in_set),
        "any" => Some(set(&[('\0', char::MAX)])),
        // Oniguruma has no such prefix, and ages and blocks by names that are not read here.
        _ if !key.chars().all(|char| char.is_ascii_alphanumeric()) || key.starts_with("is") => None,
        _ => posix(&key).or_else(|| unicode(&key)),
    }
}

/// The set that the Unicode tables of `regex-syntax` have by `name`.
fn unicode(name: &str) -> Option<ClassUnicode> {
    let hir = regex_syntax::parse(&format!(r"\p{{{name}}}")).ok()?;
    match hir.into_kind() {
        HirKind::Class(Class::Unicode(class)) => Some(class),
        // A set of one character.
        HirKind::Literal(literal) => {
            let char = str::from_utf8(&literal.0).ok()?.chars().next()?;
            Some(set(&[(char, char)]))
        }
        _ => None,
    }
}

/// The only character of `set`, if it has one.
pub(super) fn only_char(set: &ClassUnicode) -> Option<char> {
    match set.ranges() {
        [range] if range.start() == range.end() => Some(range.start()),
        _ => None,
    }
}
