//! The bearer token of a request.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};

use super::header;

/// The token of an `Authorization: Bearer` header, or of a WebSocket's subprotocol, which is where browsers must put it.
pub fn bearer(headers: &HeaderMap) -> Result<Option<String>, String> {
    let text = header::text(headers, AUTHORIZATION.as_str()).map_err(|error| error.to_string())?;
    let token = text.and_then(|text| text.trim().split_once(' ')).and_then(|(scheme, token)| {
        let token = token.trim();
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    });
    match token {
        Some(token) => Ok(Some(token.to_owned())),
        None => websocket_bearer(headers),
    }
}

const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

fn websocket_bearer(headers: &HeaderMap) -> Result<Option<String>, String> {
    if !crate::watch::websocket::is_requested(headers) {
        return Ok(None);
    }
    let offered = header::texts(headers, SEC_WEBSOCKET_PROTOCOL.as_str()).map_err(|error| error.to_string())?;
    let (tokens, others): (Vec<&str>, Vec<&str>) = offered
        .iter()
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .partition(|name| name.starts_with(TOKEN_PROTOCOL));
    let token = match tokens[..] {
        [] => return Ok(None),
        [token] if !others.is_empty() => token.strip_prefix(TOKEN_PROTOCOL).unwrap_or_default(),
        [_] => return Err("missing additional subprotocol".to_owned()),
        _ => return Err("multiple base64.bearer.authorization tokens specified".to_owned()),
    };
    let decoded = URL_SAFE_NO_PAD.decode(token).map_err(|error| error.to_string())?;
    let decoded = String::from_utf8(decoded).map_err(|_| "invalid base64.bearer.authorization token".to_owned())?;
    if decoded.is_empty() { Err("empty token".to_owned()) } else { Ok(Some(decoded)) }
}
