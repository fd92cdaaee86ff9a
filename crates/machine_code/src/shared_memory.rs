//! Shared memory that PTX declares.

/// Static shared memory of a block in bytes, as the declarations in `ptx` say.
pub fn static_shared_bytes(ptx: &str) -> u32 {
    let lines = ptx.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    lines
        .filter_map(shared_variable)
        .fold(0, |end, (align, bytes)| end.next_multiple_of(align) + bytes)
}

/// Alignment and size of the variable in `.shared .align 16 .b8 name[128];`; one of another text,
/// `.extern`, has no size here.
fn shared_variable(line: &str) -> Option<(u32, u32)> {
    let words: Vec<&str> = line.strip_suffix(';')?.split_whitespace().collect();
    if words.first() == Some(&".extern") || !words.contains(&".shared") {
        return None;
    }
    let name = words.last()?;
    let bits = words.iter().find_map(|word| {
        word.strip_prefix('.')?.strip_prefix(['b', 'u', 's', 'f'])?.parse::<u32>().ok()
    })?;
    let align = words.iter().skip_while(|word| **word != ".align").nth(1);
    let align = align.and_then(|align| align.parse().ok()).unwrap_or(bits / 8);
    let length = |dimension: &str| dimension.trim_end_matches(']').parse::<u32>().ok();
    let elements = name.split('[').skip(1).map(length).product::<Option<u32>>()?;
    Some((align, elements * bits / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_shared_memory_is_that_of_this_text() {
        let ptx = ".extern .shared .align 1024 .b8 dynamic[];\n.shared .align 4 .b8 flag[4];\n\
                   // .shared .align 4 .b8 comment[400];\n.shared .align 16 .b8 tile[2][64];\n\
                   .shared .b64 barrier;\n\tst.shared.b32 \t[%r2], %r1;\n";
        // The tile starts at 16 and the barrier at 144.
        assert_eq!(static_shared_bytes(ptx), 152);
        assert_eq!(static_shared_bytes(".entry k() {\n\tret;\n}\n"), 0);
    }
}
