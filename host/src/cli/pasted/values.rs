//! What values of other programs' options are here.

/// The arguments that stand for an option with `values`, by the rule of this name; or why it is refused.
pub fn rule(rule: &str, values: &[String], is_chat: bool) -> Result<Vec<String>, String> {
    let value = values.first().map_or("", String::as_str);
    let with = |option: &str, value: &str| Ok(vec![option.to_owned(), value.to_owned()]);
    let nothing = || Ok(Vec::new());
    match rule {
        "threads" => match value {
            "-1" | "0" => nothing(),
            _ => with("--threads", value),
        },
        "seed" => match value {
            // llama.cpp's for a new one each time.
            "-1" | "4294967295" => nothing(),
            _ => with("--seed", value),
        },
        "predict" => with("--n-predict", if value == "-2" { "-1" } else { value }),
        "parallel" => {
            if value == "-1" {
                nothing()
            } else {
                with("--max-num-seqs", value)
            }
        }
        "max_model_len" => match value {
            "-1" | "auto" => with("--ctx-size", "0"),
            _ => with("--ctx-size", &count(value)?),
        },
        "max_num_batched_tokens" => with("--max-num-batched-tokens", &count(value)?),
        "top_k" => with("--top-k", if value == "-1" { "0" } else { value }),
        "generation_config" => generation_config(value),
        "flash_attention" => match value {
            "off" | "0" | "false" | "disabled" => with("--attention", "materialized"),
            _ => nothing(),
        },
        "gpu_layers" => {
            if value == "0" {
                with("--device", "cpu")
            } else {
                nothing()
            }
        }
        "device" => with("--device", &device(value)?),
        "main_gpu" | "device_ids" => with("--device", &gpus(value)?),
        "nccl" => with("--collectives", "nccl"),
        "dtype" => with("--dtype", dtype(value)),
        "kv_cache_dtype" => match value {
            "auto" => nothing(),
            "fp8_e5m2" | "fp8_inc" | "fp8_ds_mla" => Err("the cache has E4M3: fp8".to_owned()),
            _ => with("--kv-cache-dtype", dtype(value)),
        },
        "quantization" => quantization(value),
        "log_off" => with("--log-level", "off"),
        "log_level" => with(
            "--log-level",
            match value {
                "critical" => "error",
                "warning" => "warn",
                "debug" | "trace" => "info",
                level => level,
            },
        ),
        "system" if is_chat => with("--system", value),
        "system" => Ok(["--chat", "--system", value].map(str::to_owned).into()),
        "conversation" if is_chat => nothing(),
        "conversation" => Ok(vec!["--chat".to_owned()]),
        "no_conversation" | "single_turn" if !is_chat => nothing(),
        "no_conversation" | "single_turn" => Err("use halfwarp generate".to_owned()),
        "interactive" if is_chat => nothing(),
        "interactive" => Err("use halfwarp chat".to_owned()),
        "reasoning_format" => match value {
            "none" => with("--reasoning-parser", "none"),
            "auto" | "deepseek" => nothing(),
            _ => Err("reasoning is set apart, or left in the text: auto or none".to_owned()),
        },
        "served_model_name" => served_name(&value.split(',').collect::<Vec<_>>()),
        "served_model_names" => served_name(&values.iter().map(String::as_str).collect::<Vec<_>>()),
        "api_keys" => Ok(repeated("--api-key", values.iter().map(String::as_str))),
        "cors_origins" => cors_origins(value),
        _ => unreachable!("{rule} is no rule"),
    }
}

fn repeated<'a>(option: &str, values: impl Iterator<Item = &'a str>) -> Vec<String> {
    values.flat_map(|value| [option.to_owned(), value.to_owned()]).collect()
}

/// A number with a unit, as vLLM has it: `16k` is 16,000 and `16K` 16,384.
fn count(text: &str) -> Result<String, String> {
    const UNITS: [(char, f64); 6] = [
        ('k', 1e3),
        ('m', 1e6),
        ('g', 1e9),
        ('K', 1024.0),
        ('M', 1024.0 * 1024.0),
        ('G', 1024.0 * 1024.0 * 1024.0),
    ];
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(*unit));
    let Some((unit, factor)) = unit else { return Ok(text.to_owned()) };
    let number: Option<f64> = text.strip_suffix(*unit).and_then(|number| number.parse().ok());
    let count = number.map(|number| number * factor).filter(|count| (0.0..1e15).contains(count));
    let count = count.ok_or_else(|| format!("{text} is no number of tokens"))?;
    Ok(format!("{}", count as u64))
}

/// Sampling values in JSON, under the names of generation_config.json.
fn generation_config(json: &str) -> Result<Vec<String>, String> {
    const OPTIONS: [(&str, &str); 5] = [
        ("temperature", "--temp"),
        ("top_k", "--top-k"),
        ("top_p", "--top-p"),
        ("min_p", "--min-p"),
        ("repetition_penalty", "--repeat-penalty"),
    ];
    let values: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(json).map_err(|_| "expected an object of JSON".to_owned())?;
    let mut args = Vec::new();
    for (name, value) in values {
        let known = OPTIONS.iter().find(|(known, _)| *known == name);
        let (_, option) = known.ok_or_else(|| format!("a request says it: {name}"))?;
        args.extend([(*option).to_owned(), value.to_string()]);
    }
    Ok(args)
}

/// llama.cpp's names of devices: `CUDA0,CUDA1`, or `none`.
fn device(names: &str) -> Result<String, String> {
    if names == "none" {
        return Ok("cpu".to_owned());
    }
    let ordinals: Option<Vec<&str>> =
        names.split(',').map(|name| name.strip_prefix("CUDA")).collect();
    ordinals.map_or_else(|| Ok(names.to_owned()), |ordinals| gpus(&ordinals.join(",")))
}

fn gpus(ordinals: &str) -> Result<String, String> {
    let are_numbers = ordinals.split(',').all(|ordinal| ordinal.trim().parse::<u32>().is_ok());
    match are_numbers {
        true => Ok(format!("cuda:{}", ordinals.replace(' ', ""))),
        false => Err("a GPU is a number: --device cuda:0".to_owned()),
    }
}

/// PyTorch's names of types.
fn dtype(name: &str) -> &str {
    match name {
        "half" | "float16" => "f16",
        "bfloat16" => "bf16",
        "float" | "float32" => "f32",
        name => name,
    }
}

/// What vLLM reads from the checkpoint as well.
fn quantization(method: &str) -> Result<Vec<String>, String> {
    const STORED: [&str; 9] = [
        "awq",
        "awq_marlin",
        "gptq",
        "gptq_marlin",
        "compressed-tensors",
        "mxfp4",
        "gguf",
        "auto-round",
        "none",
    ];
    match method {
        _ if STORED.contains(&method) => Ok(Vec::new()),
        "fp8" => {
            Err("a checkpoint in FP8 says so itself: leave it out; --dtype fp8 converts others"
                .to_owned())
        }
        _ => {
            Err("weights are read as they are stored, and halfwarp quantize makes GGUF".to_owned())
        }
    }
}

fn served_name(names: &[&str]) -> Result<Vec<String>, String> {
    match names {
        [name] => Ok(["--served-model-name", name].map(str::to_owned).into()),
        _ => Err("a model has one name".to_owned()),
    }
}

/// Origins with commas between them, or as a list of JSON.
fn cors_origins(text: &str) -> Result<Vec<String>, String> {
    let list: Vec<String> = if text.starts_with('[') {
        serde_json::from_str(text).map_err(|_| "expected a list of texts in JSON".to_owned())?
    } else {
        text.split(',').map(|origin| origin.trim().to_owned()).collect()
    };
    Ok(repeated("--cors-origin", list.iter().map(String::as_str)))
}
