//! `halfwarp random-model`.

use super::{choices, failure::Failure, output_file, terminal};
use clap::builder::PossibleValuesParser;
use halfwarp::Config;
use halfwarp::quantize::{Mix, QuantizeError, random_checkpoint};
use std::fs::{self, File};
use std::path::PathBuf;

/// The checkpoints that can be imitated, and one that is as small as a step of the CPU is fast: for
/// what is around a model. Each with its real `config.json`, except for the weights' type and the
/// context of Llama's, which are measured in longer ones.
const MODELS: [(&str, &str); 23] = [
    ("tiny", include_str!("random_model/tiny.json")),
    ("qwen2.5-0.5b", include_str!("random_model/qwen2.5-0.5b.json")),
    ("qwen2.5-7b", include_str!("random_model/qwen2.5-7b.json")),
    ("qwen3-8b", include_str!("random_model/qwen3-8b.json")),
    ("phi-3-mini", include_str!("random_model/phi-3-mini.json")),
    ("llama-2-7b", include_str!("random_model/llama-2-7b.json")),
    ("llama-3-70b", include_str!("random_model/llama-3-70b.json")),
    ("smollm3-3b", include_str!("random_model/smollm3-3b.json")),
    ("granite-3.3-2b", include_str!("random_model/granite-3.3-2b.json")),
    ("granite-3.3-8b", include_str!("random_model/granite-3.3-8b.json")),
    ("olmo-3-7b", include_str!("random_model/olmo-3-7b.json")),
    ("ministral-3-8b", include_str!("random_model/ministral-3-8b.json")),
    ("gemma-2-9b", include_str!("random_model/gemma-2-9b.json")),
    ("gemma-3-4b", include_str!("random_model/gemma-3-4b.json")),
    ("gemma-4-e4b", include_str!("random_model/gemma-4-e4b.json")),
    ("gemma-4-26b-a4b", include_str!("random_model/gemma-4-26b-a4b.json")),
    ("qwen3-30b-a3b", include_str!("random_model/qwen3-30b-a3b.json")),
    ("qwen3.5-9b", include_str!("random_model/qwen3.5-9b.json")),
    ("qwen3.5-27b", include_str!("random_model/qwen3.5-27b.json")),
    ("qwen3.5-35b-a3b", include_str!("random_model/qwen3.5-35b-a3b.json")),
    ("gpt-oss-20b", include_str!("random_model/gpt-oss-20b.json")),
    ("gpt-oss-120b", include_str!("random_model/gpt-oss-120b.json")),
    ("bert-base", include_str!("random_model/bert-base.json")),
];

/// Arguments of `halfwarp random-model`.
#[derive(clap::Args)]
pub struct RandomModelArgs {
    /// The model whose shapes it has
    #[arg(value_parser = PossibleValuesParser::new(MODELS.map(|(name, _)| name)))]
    name: String,
    /// The directory to write it to
    #[arg(value_hint = clap::ValueHint::DirPath)]
    out: PathBuf,
    /// Write GGUF with weights of this type [default: safetensors in f16]
    #[arg(long = "type", value_name = "TYPE", value_parser = choices::mix())]
    mix: Option<Mix>,
}

/// Writes the model.
pub fn run(args: &RandomModelArgs) -> Result<(), Failure> {
    let RandomModelArgs { name, out, mix } = args;
    let json = MODELS.iter().find(|(known, _)| known == name).map_or("", |(_, json)| json);
    let file = if mix.is_some() { "model.gguf" } else { "model.safetensors" };
    let path = out.join(file);
    let cannot = |error| Failure::Environment(format!("cannot make {}: {error}", out.display()));
    fs::create_dir_all(out).map_err(cannot)?;
    output_file::check(&path)?;
    output_file::write_whole(&path, |partial| {
        random_checkpoint(&config(json), name, *mix, File::create(partial)?)?;
        match mix {
            Some(_) => Ok::<(), QuantizeError>(()),
            None => Ok(fs::write(out.join("config.json"), json)?),
        }
    })?;
    terminal::note(format_args!("wrote {}", path.display()));
    Ok(())
}

/// One of [`MODELS`].
fn config(json: &str) -> Config {
    let json = serde_json::from_str(json).expect("it is a part of this program");
    Config::from_hf(&json).expect("it is that of a real model")
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfwarp::quantize::random_tensors;

    /// The parameter counts are those of the real checkpoints' `model.safetensors.index.json` /
    /// model card.
    #[test]
    fn shapes_have_the_real_number_of_parameters() {
        let counts: [usize; 23] = MODELS.map(|(_, json)| {
            let tensors = random_tensors(&config(json), None);
            tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum()
        });
        let real = [
            494_032_768,
            7_615_616_512,
            8_190_735_360,
            3_821_079_552,
            6_738_415_616,
            70_553_706_496,
            3_075_098_624,
            2_533_539_840,
            8_170_864_640,
            7_298_011_136,
            // Without the part for images.
            8_489_553_920,
            9_241_705_984,
            // Without the part for images.
            3_880_263_168,
            // As transformers counts its class for text, and the factor of each layer.
            7_463_013_418,
            25_233_141_790,
            30_532_122_624,
            // Without the parts for images and for several tokens at once, by the layers' shapes.
            8_953_803_264,
            26_895_998_464,
            34_660_610_688,
            20_914_757_184,
            116_829_156_672,
            // Without the pooler, of 768 by 769.
            108_891_648,
        ];
        assert_eq!(counts[1..], real);
    }

    /// The sizes of published Q4_K_M files, less about as many bytes of tokenizer as their
    /// vocabularies have.
    #[test]
    fn files_are_as_large_as_the_real_ones() {
        let bytes = |index: usize| {
            let tensors = random_tensors(&config(MODELS[index].1), Some(Mix::Q4_K_M));
            tensors.iter().map(|tensor| tensor.bytes().next_multiple_of(32)).sum()
        };
        let (llama, qwen): (usize, usize) = (bytes(5), bytes(1));
        assert!((4_079_000_000..4_081_004_224).contains(&llama), "{llama}");
        assert!((390_000_000..397_808_192).contains(&qwen), "{qwen}");
    }
}
