//! The model that a name means. A name only ever chooses among the models that there are: no path
//! is made of it.

use super::Offer;
use crate::server::catalog::{hub_name, plain, squashed};
use std::sync::Arc;

/// Bytes of a name at most that is looked for.
const MAX_NAME_BYTES: usize = 256;

/// The model that `name` means: by its own name, an alias or its file, as the hub has it with a
/// quantisation, or as Ollama's library has it, which says how names begin (`qwen3:8b`).
pub fn find<'a>(name: &str, offers: &'a [Arc<Offer>]) -> Option<&'a Arc<Offer>> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return None;
    }
    let names = |offer: &Offer| {
        let file = offer.path.extension().and(offer.path.file_stem());
        let file = file.map(|stem| stem.to_string_lossy().into_owned());
        let own = std::iter::once(offer.settings.name.clone());
        own.chain(offer.aliases.iter().cloned()).chain(file).collect::<Vec<_>>()
    };
    let by = |is_it: &dyn Fn(&str) -> bool| {
        offers.iter().find(|offer| names(offer).iter().any(|known| is_it(known)))
    };
    // No alias takes the place of a model's own name.
    let own = offers.iter().find(|offer| offer.settings.name == name);
    own.or_else(|| by(&|known| known == name))
        .or_else(|| by(&|known| plain(known) == plain(name)))
        .or_else(|| of_hub(name, offers))
        .or_else(|| of_ollama(name, offers))
}

/// By `ORG/NAME` and what is wanted of it.
fn of_hub<'a>(name: &str, offers: &'a [Arc<Offer>]) -> Option<&'a Arc<Offer>> {
    let wanted = hub_name(name)?;
    let repo = wanted.repo.as_str();
    let quant = wanted.wanted.as_deref().map(squashed);
    let mut fitting = offers.iter().filter(|offer| {
        let (of, file) = offer.settings.name.split_once(':').unwrap_or((&offer.settings.name, ""));
        let is_quant = |quant: &String| squashed(file).contains(quant.as_str());
        of.eq_ignore_ascii_case(repo) && quant.as_ref().is_none_or(is_quant)
    });
    match (fitting.next(), fitting.next()) {
        (Some(offer), None) => Some(offer),
        // Several could be meant.
        _ => None,
    }
}

/// By how names begin; the shortest says the least beside what is wanted.
fn of_ollama<'a>(name: &str, offers: &'a [Arc<Offer>]) -> Option<&'a Arc<Offer>> {
    let wanted = squashed(&plain(name));
    if wanted.is_empty() || name.contains(['/', '\\', '\0']) {
        return None;
    }
    let begins = |offer: &Offer| {
        let (repo, file) =
            offer.settings.name.split_once(':').unwrap_or((&offer.settings.name, ""));
        let last = |path: &str| path.rsplit('/').next().map(squashed).unwrap_or_default();
        [repo, file].into_iter().any(|path| last(path).starts_with(&wanted))
    };
    let fitting = offers.iter().filter(|offer| begins(offer));
    fitting.min_by_key(|offer| offer.settings.name.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::models::tests::offer;

    fn offers() -> Vec<Arc<Offer>> {
        let names = [
            "smollm2-135m-instruct",
            "Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q4_K_M.gguf",
            "Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q8_0.gguf",
            "Qwen/Qwen3-0.6B",
        ];
        let mut offers: Vec<Offer> = names.iter().map(|name| offer(name, "x")).collect();
        offers[3].aliases = vec!["small".to_owned()];
        offers[0].path = "/cache/SmolLM2-135M-Instruct.Q4_1.gguf".into();
        offers.into_iter().map(Arc::new).collect()
    }

    #[test]
    fn names_as_clients_write_them() {
        let offers = offers();
        for (name, wanted) in [
            ("smollm2-135m-instruct", Some(0)),
            ("SmolLM2-135M-Instruct:latest", Some(0)),
            ("SmolLM2-135M-Instruct.Q4_1", Some(0)),
            ("smollm2:135m", Some(0)),
            ("smollm2", Some(0)),
            ("Qwen/Qwen3-8B-GGUF:Q4_K_M", Some(1)),
            ("hf.co/Qwen/Qwen3-8B-GGUF:q8_0", Some(2)),
            // Which of the two?
            ("Qwen/Qwen3-8B-GGUF", None),
            ("qwen3:8b", Some(2)),
            ("qwen3:0.6b", Some(3)),
            ("small", Some(3)),
            ("Qwen/Qwen3-0.6B:latest", Some(3)),
            ("qwen3:32b", None),
            ("gpt-4o", None),
        ] {
            let found = find(name, &offers).map(|found| found.settings.name.clone());
            let wanted = wanted.map(|index: usize| offers[index].settings.name.clone());
            assert_eq!(found, wanted, "{name}");
        }
    }

    #[test]
    fn an_alias_takes_no_name_of_another_model() {
        let mut offers = [offer("a", "x"), offer("b", "x")];
        offers[0].aliases = vec!["b".to_owned()];
        let offers = offers.map(Arc::new);
        assert_eq!(find("b", &offers).unwrap().settings.name, "b");
    }

    #[test]
    fn hostile_names_mean_nothing() {
        let offers = offers();
        let long = "q".repeat(1 << 20);
        for name in [
            "",
            ".",
            "..",
            "../..",
            "../../etc/passwd",
            "/etc/passwd",
            "a/../../b",
            "\0",
            "qwen3\0",
            "C:\\x",
            "Qwen/..",
            "../Qwen3-0.6B",
            "%2e%2e/x",
            "hf.co/../x",
            ":",
            "/",
            "//",
            &long,
        ] {
            assert!(find(name, &offers).is_none(), "{name:?}");
        }
    }
}
