//! `/v1/rerank` and `/v1/score`: how well documents fit a query.
//!
//! A model that is trained to rank has a classifier, which reads both as one, or says `yes` or
//! `no`; another one embeds both, and the cosine of the two vectors counts.

mod judge;

use super::app::{App, new_id};
use super::common::unix_time;
use super::embeddings::{embed, one_each};
use super::error::{ApiError, json_response};
use super::request::{RankOptions, RerankRequest, ScoreRequest};
use crate::engine::{Pooling, Request, RequestEvent};
use axum::http::StatusCode;
use axum::response::Response;
pub(super) use judge::Judge;
use serde_json::{Value, json};

/// Whose shape a ranking has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Jina's, vLLM's and that of Cohere's first version: with the documents, unless they are not
    /// wanted.
    One,
    /// That of Cohere's second version: without them.
    Two,
}

/// What a request asks the engine for, and how scores come of it.
#[derive(Debug)]
pub(super) enum Scoring {
    /// One request for each pair, whose answer begins with `yes` or `no`.
    Judged(Vec<Request>),
    /// One request for each pair, of which a classifier makes a logit.
    Crossed(Vec<Request>),
    /// Requests for all queries, then for all documents; there may be one query for all.
    Embedded { queries: Vec<Request>, documents: Vec<Request> },
}

/// What `/v1/rerank` asks for.
pub(super) fn parse_rerank(app: &App, body: &[u8]) -> Result<(RerankRequest, Scoring), ApiError> {
    let mut request = RerankRequest::parse(body)?;
    if let Some(max) = request.max_tokens_per_doc {
        for document in &mut request.documents {
            cut(app, document, max)?;
        }
    }
    let (query, documents) = (&*request.query, request.documents.iter().map(String::as_str));
    let scoring = scoring(app, &request.options, &[query], documents.collect())?;
    Ok((request, scoring))
}

/// What `/v1/score` asks for.
pub(super) fn parse_score(app: &App, body: &[u8]) -> Result<Scoring, ApiError> {
    let ScoreRequest { options, queries, documents } = ScoreRequest::parse(body)?;
    let [queries, documents] = [&queries, &documents].map(|texts| texts.iter().map(String::as_str));
    scoring(app, &options, &queries.collect::<Vec<_>>(), documents.collect())
}

/// Leaves at most `max` tokens of a text.
fn cut(app: &App, text: &mut String, max: usize) -> Result<(), ApiError> {
    let ids = app.encode(text, false)?;
    if ids.len() > max {
        *text = app.text()?.tokenizer.decode(&ids[..max], false);
    }
    Ok(())
}

/// `queries`: one, or as many as documents.
fn scoring(
    app: &App,
    options: &RankOptions,
    queries: &[&str],
    documents: Vec<&str>,
) -> Result<Scoring, ApiError> {
    app.check_model(options.model.as_deref())?;
    app.check_priority(options.priority)?;
    let request = |prompt: Vec<u32>| Request {
        prompt,
        cache_salt: options.cache_salt.clone(),
        priority: options.priority,
        ..Request::default()
    };
    let max = options.truncate.max_tokens(app)?;
    if app.model.pooling() == Pooling::Score {
        check_classifier(app, options)?;
        let pairs = documents.into_iter().zip(queries.iter().cycle());
        let requests = pairs.map(|(document, query)| {
            let (prompt, second) = pair(app, query, document, max)?;
            let (pooling, second_text) = (Some(Pooling::Score), Some(second));
            Ok(Request { pooling, second_text, ..request(prompt) })
        });
        return Ok(Scoring::Crossed(requests.collect::<Result<_, ApiError>>()?));
    }
    if let Some(judge) = Judge::of(app)? {
        let queries = queries.iter().cycle();
        let requests = documents.into_iter().zip(queries).map(|(document, query)| {
            let prompt = judge.prompt(app, options.instruction.as_deref(), query, document)?;
            Ok(Request {
                max_new_tokens: Some(1),
                logprobs: Some(0),
                logprobs_of: judge.tokens.to_vec(),
                ..request(prompt)
            })
        });
        return Ok(Scoring::Judged(requests.collect::<Result<_, ApiError>>()?));
    }
    if options.instruction.is_some() {
        let what = "only a model that is trained to rank takes one";
        return Err(ApiError::param("instruction", what));
    }
    let embed = |text: &&str| {
        let prompt = match max {
            None => app.encode(text, true)?,
            Some(max) => app.encode_at_most(text, true, max)?,
        };
        Ok(Request { pooling: Some(app.model.pooling()), ..request(prompt) })
    };
    Ok(Scoring::Embedded {
        queries: queries.iter().map(embed).collect::<Result<_, ApiError>>()?,
        documents: documents.iter().map(embed).collect::<Result<_, ApiError>>()?,
    })
}

/// Whether the model's classifier gives one score, and takes what is asked.
fn check_classifier(app: &App, options: &RankOptions) -> Result<(), ApiError> {
    if options.instruction.is_some() {
        return Err(ApiError::param("instruction", "this model's classifier takes none"));
    }
    match app.model.embedding_size() {
        1 => Ok(()),
        num_labels => {
            let what = format!("this model's classifier has {num_labels} labels: a score is one");
            Err(ApiError::invalid(what))
        }
    }
}

/// The tokens of a query and a document as one text, of at most `max` tokens, and where the
/// document begins. What is longer loses tokens first.
fn pair(
    app: &App,
    query: &str,
    document: &str,
    max: Option<usize>,
) -> Result<(Vec<u32>, usize), ApiError> {
    let encode = |text: &str| match max {
        None => app.encode(text, false),
        Some(max) => app.encode_at_most(text, false, max),
    };
    let (mut query, mut document) = (encode(query)?, encode(document)?);
    let tokenizer = &app.text()?.tokenizer;
    if let Some(max) = max {
        let room = max.saturating_sub(tokenizer.num_added_to_pair());
        let [shorter, longer] = match query.len() > document.len() {
            true => [&mut document, &mut query],
            false => [&mut query, &mut document],
        };
        longer.truncate(room.saturating_sub(shorter.len()).max(room.div_ceil(2)));
        shorter.truncate(room - longer.len().min(room));
    }
    Ok(tokenizer.pair(&query, &document))
}

impl Scoring {
    /// Tokens of all prompts.
    fn num_tokens(&self) -> usize {
        let count = |requests: &[Request]| -> usize {
            requests.iter().map(|request| request.prompt.len()).sum()
        };
        match self {
            Scoring::Judged(requests) | Scoring::Crossed(requests) => count(requests),
            Scoring::Embedded { queries, documents } => count(queries) + count(documents),
        }
    }

    /// The scores of all pairs.
    async fn scores(self, app: &App) -> Result<Vec<f64>, ApiError> {
        match self {
            Scoring::Judged(requests) => {
                let judged = |event| match event {
                    RequestEvent::Logprobs(logprobs) => Some(logprobs.of),
                    _ => None,
                };
                let judged = one_each(app, requests, judged).await?;
                Ok(judged.iter().map(|of| judge::score(of)).collect())
            }
            Scoring::Crossed(requests) => {
                let pooler = app.model.decoder().pooler();
                let logits = embed(app, requests).await?;
                let first = |logits: &Vec<f32>| logits.first().copied().unwrap_or(f32::NAN);
                Ok(logits.iter().map(|logits| pooler.score(first(logits))).collect())
            }
            Scoring::Embedded { queries, documents } => {
                let num_queries = queries.len();
                let all = queries.into_iter().chain(documents).collect();
                let mut queries = embed(app, all).await?;
                let documents = queries.split_off(num_queries);
                // They have length 1.
                let cosine = |(document, query): (&Vec<f32>, &Vec<f32>)| {
                    let products = document.iter().zip(query);
                    products.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
                };
                Ok(documents.iter().zip(queries.iter().cycle()).map(cosine).collect())
            }
        }
    }
}

/// The ranking of documents, the best first.
pub(super) async fn rerank(
    app: &App,
    (request, scoring): (RerankRequest, Scoring),
    version: Version,
) -> Result<Response, ApiError> {
    let num_tokens = scoring.num_tokens();
    let scores = scoring.scores(app).await?;
    let mut ranked: Vec<(usize, f64)> = scores.into_iter().enumerate().collect();
    // Those of the same score stay in their order.
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(request.top_n);
    let with_documents = request.return_documents.unwrap_or(version == Version::One);
    let result = |(index, score): (usize, f64)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if with_documents {
            result["document"] = json!({ "text": request.documents[index] });
        }
        result
    };
    let results: Vec<Value> = ranked.into_iter().map(result).collect();
    let mut body = json!({
        "id": new_id("rerank-"),
        "model": app.settings.name,
        "results": results,
        "usage": { "prompt_tokens": num_tokens, "total_tokens": num_tokens },
    });
    if version == Version::Two {
        body["meta"] = json!({
            "api_version": { "version": "2" },
            "billed_units": { "search_units": 1 },
            "tokens": { "input_tokens": num_tokens },
        });
    }
    Ok(json_response(StatusCode::OK, &body))
}

/// The score of each pair.
pub(super) async fn score(app: &App, scoring: Scoring) -> Result<Response, ApiError> {
    let num_tokens = scoring.num_tokens();
    let scores = scoring.scores(app).await?;
    let data = scores.into_iter().enumerate();
    let data =
        data.map(|(index, score)| json!({ "index": index, "object": "score", "score": score }));
    let body = json!({
        "id": new_id("score-"),
        "object": "list",
        "created": unix_time(),
        "model": app.settings.name,
        "data": data.collect::<Vec<_>>(),
        "usage": { "prompt_tokens": num_tokens, "total_tokens": num_tokens },
    });
    Ok(json_response(StatusCode::OK, &body))
}
