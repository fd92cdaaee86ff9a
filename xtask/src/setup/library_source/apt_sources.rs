//! Where this machine's apt gets Debian from.

use std::{collections::BTreeMap, fs, path::PathBuf};

/// One place of Debian packages, as the machine's own configuration names it.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    uri: String,
    /// A key file, fingerprint or whole key (with continuation lines), where the configuration names one.
    signed_by: Option<String>,
}

impl Source {
    /// The first source of this machine's own release, `main`.
    pub fn from_this_machine() -> Option<Source> {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        let suites = [codename.unwrap_or("sid"), "stable", "testing", "unstable", "sid"];
        config_files().into_iter().find_map(|path| {
            let text = fs::read_to_string(&path).ok()?;
            if path.extension()? == "sources" {
                deb822(&text, &suites)
            } else {
                one_line(&text, &suites)
            }
        })
    }

    /// A deb822 stanza for `suite main` from the same place.
    pub fn with_suite(&self, suite: &str) -> String {
        let signed_by =
            self.signed_by.as_ref().map_or(String::new(), |key| format!("Signed-By: {key}\n"));
        format!("Types: deb\nURIs: {}\nSuites: {suite}\nComponents: main\n{signed_by}", self.uri)
    }
}

fn config_files() -> Vec<PathBuf> {
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten();
    let mut files: Vec<PathBuf> = parts.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "sources" || ext == "list"));
    files.sort();
    files.insert(0, "/etc/apt/sources.list".into());
    files
}

fn deb822(text: &str, suites: &[&str]) -> Option<Source> {
    let stanzas = text.split("\n\n").map(fields);
    stanzas.filter(|stanza| stanza.get("enabled").is_none_or(|value| value != "no")).find_map(
        |stanza| {
            let has = |field: &str, wanted: &[&str]| {
                let value = stanza.get(field).map_or("", String::as_str);
                value.split_whitespace().any(|word| wanted.contains(&word))
            };
            if !(has("types", &["deb"]) && has("suites", suites) && has("components", &["main"])) {
                return None;
            }
            Some(Source {
                uri: stanza.get("uris")?.split_whitespace().next()?.to_owned(),
                signed_by: stanza.get("signed-by").cloned(),
            })
        },
    )
}

/// The fields of a stanza, names in lower case; continuation lines stay as they are.
fn fields(stanza: &str) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut last = String::new();
    for line in stanza.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with([' ', '\t']) {
            let value: &mut String = fields.entry(last.clone()).or_default();
            value.push('\n');
            value.push_str(line);
        } else if let Some((name, value)) = line.split_once(':') {
            last = name.to_ascii_lowercase();
            fields.insert(last.clone(), value.trim().to_owned());
        }
    }
    fields
}

fn one_line(text: &str, suites: &[&str]) -> Option<Source> {
    text.lines().find_map(|line| {
        let mut rest = line.strip_prefix("deb")?.trim();
        let mut signed_by = None;
        if let Some(bracketed) = rest.strip_prefix('[') {
            let (options, after) = bracketed.split_once(']')?;
            let mut options = options.split_whitespace();
            signed_by = options.find_map(|option| option.strip_prefix("signed-by="));
            rest = after.trim();
        }
        let words: Vec<&str> = rest.split_whitespace().collect();
        let (uri, suite) = (words.first()?, words.get(1)?);
        let usable = suites.contains(suite) && words[2..].contains(&"main");
        usable.then(|| Source { uri: (*uri).to_owned(), signed_by: signed_by.map(str::to_owned) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITES: &[&str] = &["bookworm", "stable"];

    fn source(signed_by: Option<&str>) -> Option<Source> {
        let uri = "http://mirror.example/debian".to_owned();
        Some(Source { uri, signed_by: signed_by.map(str::to_owned) })
    }

    #[test]
    fn the_release_is_taken_and_not_its_security_archive() {
        let text = "Types: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\n\
                    Components: main\n\nTypes: deb\n# a comment\nURIs: http://mirror.example/debian\n\
                    Suites: bookworm bookworm-updates\nComponents: main\nSigned-By: /k.gpg\n";
        assert_eq!(deb822(text, SUITES), source(Some("/k.gpg")));
    }

    #[test]
    fn a_key_inside_the_stanza_is_kept() {
        let text = "Types: deb\nURIs: http://mirror.example/debian\nSuites: stable\n\
                    Components: main contrib\nSigned-By:\n -----BEGIN\n .\n abc\n";
        assert_eq!(deb822(text, SUITES), source(Some("\n -----BEGIN\n .\n abc")));
    }

    #[test]
    fn disabled_stanzas_and_other_projects_are_passed_over() {
        let off = "Enabled: no\nTypes: deb\nURIs: http://a\nSuites: bookworm\nComponents: main\n";
        assert_eq!(deb822(off, SUITES), None);
        let other = "Types: deb\nURIs: http://a\nSuites: bookworm\nComponents: stable\n";
        assert_eq!(deb822(other, SUITES), None);
    }

    #[test]
    fn one_line_sources_are_read() {
        let text = "# deb http://a bookworm main\ndeb-src http://b bookworm main\n\
                    deb http://mirror.example/debian bookworm-updates main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main\n";
        assert_eq!(one_line(text, SUITES), source(Some("/k.gpg")));
        assert_eq!(
            one_line("deb http://mirror.example/debian stable contrib main", SUITES),
            source(None)
        );
    }
}
