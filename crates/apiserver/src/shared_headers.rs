//! Headers that depend on flags and not on what is requested: CORS, HSTS, and the request to open another connection.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ORIGIN, STRICT_TRANSPORT_SECURITY,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use knarr_listen::CloseConnection;
use rand::Rng;

use crate::behaviour::SharedHeaders;
use crate::response::Body;

const METHODS: &str = "POST, GET, OPTIONS, PUT, DELETE, PATCH";
const HEADERS: &str =
    "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since";

/// The response to a browser that asks whether the page of an allowed origin may send a request.
pub fn preflight(settings: &SharedHeaders, request: &Parts) -> Option<Response<Body>> {
    if request.method != Method::OPTIONS {
        return None;
    }
    let origin = allowed_origin(settings, &request.headers)?;
    let mut response = Response::new(Body::full(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    allow(origin, response.headers_mut());
    add_security(settings, response.headers_mut());
    Some(response)
}

/// Adds the headers of a response.
pub fn add(settings: &SharedHeaders, request: &Parts, response: &mut Response<Body>) {
    if let Some(origin) = allowed_origin(settings, &request.headers) {
        allow(origin, response.headers_mut());
    }
    add_security(settings, response.headers_mut());
    let chance = settings.goaway_chance;
    if chance > 0.0 && request.version == Version::HTTP_2 && rand::rng().random_bool(chance.min(1.0)) {
        response.extensions_mut().insert(CloseConnection);
    }
}

fn add_security(settings: &SharedHeaders, headers: &mut HeaderMap) {
    if let Some(directives) = &settings.strict_transport_security {
        headers.entry(STRICT_TRANSPORT_SECURITY).or_insert_with(|| directives.clone());
    }
}

fn allowed_origin<'h>(settings: &SharedHeaders, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
    if settings.allowed_origins.is_empty() {
        return None;
    }
    let origin = headers.get(ORIGIN)?;
    let text = origin.to_str().ok().filter(|text| !text.is_empty())?;
    settings.allowed_origins.iter().any(|allowed| allowed.is_match(text)).then_some(origin)
}

fn allow(origin: &HeaderValue, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(HEADERS));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("Date"));
    headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::Regex;

    fn settings() -> SharedHeaders {
        SharedHeaders {
            allowed_origins: vec![Regex::new("^https://console\\.example\\.com$").unwrap()],
            strict_transport_security: Some(HeaderValue::from_static("max-age=1; preload")),
            goaway_chance: 1.0,
        }
    }

    fn request(method: &str, origin: &str) -> Parts {
        let request = http::Request::builder().method(method).version(Version::HTTP_2).header(ORIGIN, origin);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_allowed_origins_get_a_preflight_response() {
        let of = |method, origin| preflight(&settings(), &request(method, origin));
        let allowed = of("OPTIONS", "https://console.example.com").unwrap();
        assert_eq!(allowed.status(), 204);
        assert_eq!(allowed.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], "https://console.example.com");
        assert_eq!(allowed.headers()[ACCESS_CONTROL_ALLOW_METHODS], METHODS);
        assert!(of("OPTIONS", "https://console.example.com.evil.org").is_none());
        assert!(of("GET", "https://console.example.com").is_none());
        assert!(preflight(&SharedHeaders::default(), &request("OPTIONS", "https://console.example.com")).is_none());
    }

    #[test]
    fn responses_get_the_headers_of_flags() {
        let parts = request("GET", "https://console.example.com");
        let mut response = Response::new(Body::full(""));
        add(&settings(), &parts, &mut response);
        assert_eq!(response.headers()[ACCESS_CONTROL_ALLOW_CREDENTIALS], "true");
        assert_eq!(response.headers()[STRICT_TRANSPORT_SECURITY], "max-age=1; preload");
        assert!(response.extensions().get::<CloseConnection>().is_some());
        let mut response = Response::new(Body::full(""));
        add(&SharedHeaders::default(), &parts, &mut response);
        assert!(response.headers().is_empty() && response.extensions().get::<CloseConnection>().is_none());
    }
}
