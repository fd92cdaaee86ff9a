//! The options of what sends a server many requests.

/// How many requests, and which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    pub requests: usize,
    pub seed: u64,
}

impl Options {
    /// `--requests N`, `--seed N`; `None` if there is anything else.
    pub fn parse(mut words: &[&str], requests: usize) -> Option<Self> {
        let mut options = Options { requests, seed: 1 };
        while let [name, value, rest @ ..] = words {
            match *name {
                "--requests" => options.requests = value.parse().ok()?,
                "--seed" => options.seed = value.parse().ok()?,
                _ => return None,
            }
            words = rest;
        }
        words.is_empty().then_some(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_named() {
        let parse = |words: &[&str]| Options::parse(words, 10).map(|o| (o.requests, o.seed));
        assert_eq!(parse(&[]), Some((10, 1)));
        assert_eq!(parse(&["--seed", "7", "--requests", "5"]), Some((5, 7)));
        assert_eq!(parse(&["--seed"]), None);
        assert_eq!(parse(&["--requests", "x"]), None);
    }
}
