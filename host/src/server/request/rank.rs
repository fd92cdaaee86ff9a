//! The bodies of `/v1/rerank` and `/v1/score`.
//!
//! Source: <https://docs.cohere.com/reference/rerank>, <https://jina.ai/reranker>,
//! <https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html>; `instruction` is what
//! Qwen3-Reranker takes.

use super::options::IGNORED;
use super::take_cache_salt;
use super::truncate::Truncate;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use serde_json::Value;

/// Pairs of a request at most, as many as `/v1/embeddings` has inputs.
const MAX_PAIRS: usize = 2048;

/// What both have in common.
#[derive(Debug)]
pub(in crate::server) struct RankOptions {
    pub model: Option<String>,
    /// What makes a document a good one.
    pub instruction: Option<String>,
    pub cache_salt: Option<String>,
    pub priority: i32,
    /// What becomes of texts, or pairs of them, that are too long.
    pub truncate: Truncate,
}

/// The body of `/v1/rerank`.
#[derive(Debug)]
pub(in crate::server) struct RerankRequest {
    pub options: RankOptions,
    pub query: String,
    pub documents: Vec<String>,
    /// Results at most.
    pub top_n: usize,
    /// Whether the results have the documents; the path decides where the request does not.
    pub return_documents: Option<bool>,
    pub max_tokens_per_doc: Option<usize>,
}

/// The body of `/v1/score`.
#[derive(Debug)]
pub(in crate::server) struct ScoreRequest {
    pub options: RankOptions,
    /// One, or as many as documents.
    pub queries: Vec<String>,
    pub documents: Vec<String>,
}

impl RankOptions {
    fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        fields.ignore(&IGNORED);
        Ok(RankOptions {
            model: fields.take("model")?,
            instruction: fields.take("instruction")?,
            cache_salt: take_cache_salt(fields)?,
            priority: fields.take("priority")?.unwrap_or_default(),
            truncate: Truncate::take(fields)?,
        })
    }
}

impl RerankRequest {
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let query = take_text(fields.require("query")?, "query")?;
        let documents = take_texts(fields.require("documents")?, "documents")?;
        check_pairs("documents", documents.len())?;
        let top_n = fields.take::<u32>("top_n")?.filter(|&top_n| top_n > 0);
        let max_tokens_per_doc = fields.take::<u32>("max_tokens_per_doc")?;
        if max_tokens_per_doc == Some(0) {
            return Err(ApiError::param("max_tokens_per_doc", "it has to be 1 or more"));
        }
        let request = RerankRequest {
            options: RankOptions::take(&mut fields)?,
            top_n: top_n.map_or(documents.len(), |top_n| top_n as usize),
            query,
            documents,
            return_documents: fields.take("return_documents")?,
            max_tokens_per_doc: max_tokens_per_doc.map(|max| max as usize),
        };
        fields.finish()?;
        Ok(request)
    }
}

impl ScoreRequest {
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        // vLLM's older names, and its newer ones.
        let (names, queries) = match fields.take::<Value>("text_1")? {
            Some(texts) => (["text_1", "text_2"], texts),
            None => (["queries", "documents"], fields.require("queries")?),
        };
        let queries = take_texts(queries, names[0])?;
        let documents = take_texts(fields.require(names[1])?, names[1])?;
        check_pairs(names[1], documents.len())?;
        let (left, right) = (queries.len(), documents.len());
        if left != 1 && left != right {
            let what = format!("there are {right} for {left}: it is one to many, or as many");
            return Err(ApiError::param(names[1], what));
        }
        let request = ScoreRequest { options: RankOptions::take(&mut fields)?, queries, documents };
        fields.finish()?;
        Ok(request)
    }
}

fn check_pairs(name: &str, num_pairs: usize) -> Result<(), ApiError> {
    match num_pairs {
        0 => Err(ApiError::param(name, "there has to be one at least")),
        1..=MAX_PAIRS => Ok(()),
        _ => {
            let what = format!("{num_pairs} texts, at most {MAX_PAIRS} are possible");
            Err(ApiError::param(name, what))
        }
    }
}

/// A text, or a list of them.
fn take_texts(texts: Value, name: &str) -> Result<Vec<String>, ApiError> {
    match texts {
        Value::Array(texts) => texts.into_iter().map(|text| take_text(text, name)).collect(),
        text => Ok(vec![take_text(text, name)?]),
    }
}

/// A text, or an object with one, as Cohere's first version and Jina have it.
fn take_text(text: Value, name: &str) -> Result<String, ApiError> {
    match text {
        Value::String(text) => Ok(text),
        Value::Object(mut object) => match object.remove("text") {
            Some(Value::String(text)) => Ok(text),
            _ => {
                Err(ApiError::param(name, "an object has to have a `text`: only texts are ranked"))
            }
        },
        _ => Err(ApiError::param(name, "it has to be a text or a list of texts")),
    }
}
