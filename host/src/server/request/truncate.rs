//! `truncate_prompt_tokens`, as vLLM has it where embeddings and scores are asked for.

use crate::server::app::App;
use crate::server::error::ApiError;
use crate::server::fields::Fields;

/// What becomes of a text that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Truncate {
    /// It is an error.
    No,
    /// So many tokens are left of it, or as many as the context has.
    To(usize),
}

impl Truncate {
    /// -1 is the context.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        const FIELD: &str = "truncate_prompt_tokens";
        match fields.take::<i64>(FIELD)? {
            None => Ok(Truncate::No),
            Some(-1) => Ok(Truncate::To(usize::MAX)),
            Some(max @ 1..) => Ok(Truncate::To(usize::try_from(max).unwrap_or(usize::MAX))),
            Some(_) => Err(ApiError::param(FIELD, "it has to be -1, or 1 or more")),
        }
    }

    /// Tokens of a text at most, if it is truncated.
    pub fn max_tokens(self, app: &App) -> Result<Option<usize>, ApiError> {
        match self {
            Truncate::No => Ok(None),
            Truncate::To(max) => Ok(Some(max.min(app.healthy()?.context()))),
        }
    }
}
