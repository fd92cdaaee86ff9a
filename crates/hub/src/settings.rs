//! What the environment says of the hub, in the variables that Python's `huggingface_hub` reads.

use std::{env, fmt, fs, path::PathBuf};

use crate::{HubError, url};

/// The hub where `HF_ENDPOINT` names no other.
const ENDPOINT: &str = "https://huggingface.co";

/// Which hub, with which token, and where its cache is.
#[derive(Clone)]
pub struct Settings {
    /// The address of the hub, with no `/` at its end.
    pub endpoint: String,
    /// What private and gated models are fetched with.
    pub token: Option<String>,
    /// Whether nothing may be fetched.
    pub is_offline: bool,
    cache_dir: Option<PathBuf>,
}

impl Settings {
    /// `HF_ENDPOINT`; `HF_TOKEN`, else the file `HF_TOKEN_PATH` or `$HF_HOME/token`; `HF_HUB_OFFLINE`,
    /// else `TRANSFORMERS_OFFLINE`; `HF_HUB_CACHE`, else `$HF_HOME/hub`, where `HF_HOME` is by default
    /// `$XDG_CACHE_HOME/huggingface` or `~/.cache/huggingface`.
    ///
    /// # Errors
    /// [`HubError::Endpoint`], [`HubError::Token`], and [`HubError::Io`] for a file of the token that
    /// cannot be read.
    pub fn from_env() -> Result<Settings, HubError> {
        Settings::from_vars(|name| env::var(name).ok())
    }

    /// [`Settings::from_env`] with other variables.
    ///
    /// # Errors
    /// As [`Settings::from_env`].
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Settings, HubError> {
        let var = |name: &str| var(name).filter(|value| !value.trim().is_empty());
        let (home, cache_dir) = dirs(&var);
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        if url::origin(&endpoint).is_none() {
            return Err(HubError::Endpoint(endpoint));
        }
        let is_set =
            |value: String| matches!(&value.to_uppercase()[..], "1" | "ON" | "YES" | "TRUE");
        Ok(Settings {
            endpoint,
            token: token(&var, home)?,
            is_offline: var("HF_HUB_OFFLINE")
                .or_else(|| var("TRANSFORMERS_OFFLINE"))
                .is_some_and(is_set),
            cache_dir,
        })
    }

    /// The cache's directory, as the environment has it; its other variables are not looked at.
    ///
    /// # Errors
    /// [`HubError::NoCacheDir`] if nothing says where it could be.
    pub fn cache_dir_from_env() -> Result<PathBuf, HubError> {
        let var = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
        dirs(&var).1.ok_or(HubError::NoCacheDir)
    }

    /// The cache's directory.
    ///
    /// # Errors
    /// [`HubError::NoCacheDir`] if nothing says where it could be.
    pub fn cache_dir(&self) -> Result<PathBuf, HubError> {
        self.cache_dir.clone().ok_or(HubError::NoCacheDir)
    }
}

/// Without the token: what is printed ends up in logs.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("has_token", &self.token.is_some())
            .field("is_offline", &self.is_offline)
            .field("cache_dir", &self.cache_dir)
            .finish()
    }
}

/// `HF_HOME`, and the cache.
fn dirs(var: &impl Fn(&str) -> Option<String>) -> (Option<PathBuf>, Option<PathBuf>) {
    let path = |name: &str| -> Option<PathBuf> {
        let value = var(name)?;
        match value.strip_prefix("~/") {
            Some(rest) => Some(PathBuf::from(var("HOME")?).join(rest)),
            None => Some(value.into()),
        }
    };
    let home = path("HF_HOME")
        .or_else(|| Some(path("XDG_CACHE_HOME")?.join("huggingface")))
        .or_else(|| Some(path("HOME")?.join(".cache/huggingface")));
    let cache = path("HF_HUB_CACHE")
        .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| Some(home.as_ref()?.join("hub")));
    (home, cache)
}

fn token(
    var: &impl Fn(&str) -> Option<String>,
    home: Option<PathBuf>,
) -> Result<Option<String>, HubError> {
    let from_env = || var("HF_TOKEN").or_else(|| var("HUGGING_FACE_HUB_TOKEN"));
    let (text, place) = match from_env() {
        Some(token) => (token, "HF_TOKEN".to_owned()),
        None => {
            let file = var("HF_TOKEN_PATH").map(PathBuf::from);
            let Some(file) = file.or_else(|| Some(home?.join("token"))) else { return Ok(None) };
            match fs::read_to_string(&file) {
                Ok(text) => (text, file.display().to_string()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(HubError::at(&file)(error)),
            }
        }
    };
    let token = text.trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(HubError::Token(place));
    }
    Ok((!token.is_empty()).then(|| token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[(&str, &str)]) -> Result<Settings, HubError> {
        Settings::from_vars(|name| {
            vars.iter().find(|(var, _)| *var == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_cache_is_where_python_has_it() {
        let vars = [
            ("HOME", "/home/u"),
            ("XDG_CACHE_HOME", "/xdg"),
            ("HF_HOME", "~/hf"),
            ("HF_HUB_CACHE", "/cache"),
        ];
        let expected =
            ["/home/u/.cache/huggingface/hub", "/xdg/huggingface/hub", "/home/u/hf/hub", "/cache"];
        for (len, expected) in (1..).zip(expected) {
            let dir = settings(&vars[..len]).unwrap().cache_dir().unwrap();
            assert_eq!(dir, PathBuf::from(expected));
        }
        assert!(matches!(settings(&[]).unwrap().cache_dir(), Err(HubError::NoCacheDir)));
    }

    #[test]
    fn the_token_is_that_of_the_environment_else_of_the_file() {
        let home = tempfile::tempdir().unwrap();
        let home_path = home.path().to_str().unwrap();
        assert_eq!(settings(&[("HF_HOME", home_path)]).unwrap().token, None);
        fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let of_file = settings(&[("HF_HOME", home_path)]).unwrap();
        assert_eq!(of_file.token.as_deref(), Some("hf_file"));
        let of_env = settings(&[("HF_HOME", home_path), ("HF_TOKEN", " hf_env ")]).unwrap();
        assert_eq!(of_env.token.as_deref(), Some("hf_env"));
        assert!(!format!("{of_env:?}").contains("hf_env"));
        let odd = settings(&[("HF_TOKEN", "hf\r\nHost: evil")]);
        assert!(matches!(odd, Err(HubError::Token(_))), "{odd:?}");
    }

    /// `_is_true(HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)` of `huggingface_hub/constants.py`.
    #[test]
    fn two_variables_say_offline() {
        for (hub, transformers, is_offline) in [
            ("", "", false),
            ("1", "", true),
            ("", "1", true),
            ("", "yes", true),
            ("", "On", true),
            ("", "TRUE", true),
            ("", "0", false),
            ("", "2", false),
            ("0", "1", false),
            ("1", "0", true),
        ] {
            let vars = [("HF_HUB_OFFLINE", hub), ("TRANSFORMERS_OFFLINE", transformers)];
            assert_eq!(settings(&vars).unwrap().is_offline, is_offline, "{vars:?}");
        }
    }

    #[test]
    fn an_endpoint_is_an_address() {
        assert_eq!(settings(&[]).unwrap().endpoint, "https://huggingface.co");
        let own = settings(&[("HF_ENDPOINT", "http://127.0.0.1:8000/")]).unwrap();
        assert_eq!(own.endpoint, "http://127.0.0.1:8000");
        for endpoint in ["hub.example", "file:///etc", "https://"] {
            let refused = settings(&[("HF_ENDPOINT", endpoint)]);
            assert!(matches!(refused, Err(HubError::Endpoint(_))), "{endpoint}: {refused:?}");
        }
    }
}
