//! A server and its models: one, or many that requests choose from by name.

use super::app::App;
use super::body::RequestBody;
use super::common::Common;
use super::error::ApiError;
use super::models::Many;
use super::wait;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// A server and its models.
pub(super) struct Site {
    pub common: Arc<Common>,
    pub models: Models,
}

/// The models of a server.
pub(super) enum Models {
    One(Arc<App>),
    Many(Many),
}

impl AsRef<Common> for Site {
    fn as_ref(&self) -> &Common {
        &self.common
    }
}

impl Site {
    /// The models, if there are many.
    ///
    /// # Errors
    /// 501 where there is one.
    pub fn many(&self) -> Result<&Many, ApiError> {
        match &self.models {
            Models::Many(many) => Ok(many),
            Models::One(app) => {
                let name = &app.settings.name;
                let message = format!(
                    "this server has `{name}` alone: start it without -m, and it loads others by their names"
                );
                Err(ApiError::status(StatusCode::NOT_IMPLEMENTED, message))
            }
        }
    }
}

/// The model that answers a request: the only one, or that which [`choose_model`] found by its
/// name.
pub(super) struct Chosen(pub Arc<App>);

impl FromRequestParts<Arc<Site>> for Chosen {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, ApiError> {
        match &site.models {
            Models::One(app) => Ok(Chosen(Arc::clone(app))),
            Models::Many(_) => {
                let app = parts.extensions.remove::<Arc<App>>().map(Chosen);
                app.ok_or_else(|| ApiError::internal("no model was chosen for this path"))
            }
        }
    }
}

/// Finds the model that a request names, loads it if it is not loaded, and keeps it until the
/// response has ended.
pub(super) async fn choose_model(
    State(site): State<Arc<Site>>,
    request: Request,
    next: Next,
) -> Response {
    let Models::Many(_) = &site.models else { return next.run(request).await };
    match choose(site, request, next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn choose(site: Arc<Site>, request: Request, next: Next) -> Result<Response, ApiError> {
    site.common.check_open()?;
    if request.method() == Method::GET {
        let asked = wait::Asked::from_query(request.uri().query().unwrap_or_default());
        return wait::answer(site, asked, request, next).await;
    }
    let (parts, body) = request.into_parts();
    let body = RequestBody::read(&site, Request::from_parts(parts.clone(), body)).await?;
    let (bytes, path) = (body.bytes().clone(), parts.uri.path().to_owned());
    let read = move |_: &Site, bytes: &[u8]| wait::Asked::from_body(&path, bytes);
    let asked = body.parse(&site, read).await?;
    wait::answer(site, asked, Request::from_parts(parts, Body::from(bytes)), next).await
}
