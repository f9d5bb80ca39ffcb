//! Parses and verifies JSON web tokens.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use knarr_api::value::Read;
use serde_json::{Map, Value};

use super::key_set::KeySet;
use super::signature::Algorithm;

/// The claims of a verified token.
pub type Claims = Map<String, Value>;

const GOOGLE: &str = "https://accounts.google.com";
const GOOGLE_WITHOUT_SCHEME: &str = "accounts.google.com";
/// How much the clock of an issuer may be ahead.
const LEEWAY_SECONDS: f64 = 60.0;
/// Larger tokens do not fit into the headers that servers accept.
const MAX_TOKEN: usize = 1 << 20;

/// A token whose signature is not verified: none of its claims may be trusted.
pub struct UntrustedToken<'a> {
    /// Header and claims, as they are signed.
    signed: &'a str,
    header: Value,
    claims: Value,
    signature: Vec<u8>,
}

impl<'a> UntrustedToken<'a> {
    /// `None` if it is no JSON web token in compact form.
    pub fn parse(token: &'a str) -> Option<Self> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        if claims.contains('.') {
            return None;
        }
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let json = |part: &str| -> Option<Value> {
            let value: Value = serde_json::from_slice(&decode(part)?).ok()?;
            value.is_object().then_some(value)
        };
        Some(UntrustedToken { signed, header: json(header)?, claims: json(claims)?, signature: decode(signature)? })
    }

    /// The issuer that the token names.
    pub fn issuer(&self) -> &str {
        match self.claims.text(&["iss"]) {
            GOOGLE_WITHOUT_SCHEME => GOOGLE,
            issuer => issuer,
        }
    }

    /// The claims, none of which may be trusted.
    pub fn claims(&self) -> &Value {
        &self.claims
    }

    pub fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::of_name(self.header.text(&["alg"]))
    }

    pub fn key_id(&self) -> &str {
        self.header.text(&["kid"])
    }

    /// Whether a key signed the token.
    pub fn is_signed_by(&self, key: &super::signature::PublicKey, algorithm: Algorithm) -> bool {
        (self.key_id().is_empty() || key.id == self.key_id())
            && key.verifies(algorithm, self.signed.as_bytes(), &self.signature)
    }
}

/// Verifies algorithm, signature, issuer, audience and times, and returns the claims.
pub async fn verify(
    token: &UntrustedToken<'_>,
    issuer: &str,
    audiences: &[String],
    keys: &KeySet,
    now: Timestamp,
) -> Result<Claims, String> {
    // Headers that change the meaning of a token must be understood, and none is.
    if token.header.has(&["crit"]) {
        return Err("failed to verify signature: failed to verify id token signature".to_owned());
    }
    let name = token.header.text(&["alg"]);
    let Some(algorithm) = Algorithm::of_name(name).filter(|algorithm| keys.algorithms().contains(algorithm)) else {
        let expected: Vec<String> = keys.algorithms().iter().map(|own| format!("{:?}", own.name())).collect();
        let expected = expected.join(" ");
        return Err(format!("oidc: id token signed with unsupported algorithm, expected [{expected}] got {name:?}"));
    };
    keys.verify(token, algorithm).await.map_err(|error| format!("failed to verify signature: {error}"))?;
    let claims = token.claims.as_object().cloned().unwrap_or_default();
    check_claims(&claims, issuer, audiences, now)?;
    Ok(claims)
}

/// Checks the claims that every token has.
pub fn check_claims(claims: &Claims, issuer: &str, audiences: &[String], now: Timestamp) -> Result<(), String> {
    check_types(claims).map_err(|error| format!("oidc: failed to unmarshal claims: {error}"))?;
    check_issuer(claims, issuer)?;
    check_audience(claims, audiences)?;
    check_times(claims, now)
}

/// The claims of every token have these types.
fn check_types(claims: &Claims) -> Result<(), String> {
    for name in ["iss", "sub", "nonce", "at_hash"] {
        let found = match claims.get(name) {
            None | Some(Value::Null | Value::String(_)) => continue,
            Some(Value::Bool(_)) => "bool",
            Some(Value::Number(_)) => "number",
            Some(Value::Array(_)) => "array",
            Some(Value::Object(_)) => "object",
        };
        return Err(format!("json: cannot unmarshal {found} into Go struct field idToken.{name} of type string"));
    }
    for name in ["exp", "iat", "nbf"] {
        match claims.get(name) {
            None | Some(Value::Null | Value::Number(_)) => {}
            Some(other) => {
                let raw = other.to_string();
                return Err(format!("json: invalid number literal, trying to unmarshal {raw:?} into Number"));
            }
        }
    }
    Ok(())
}

fn check_issuer(claims: &Claims, issuer: &str) -> Result<(), String> {
    let given = claims.get("iss").and_then(Value::as_str).unwrap_or_default();
    if given == issuer || (issuer == GOOGLE && given == GOOGLE_WITHOUT_SCHEME) {
        return Ok(());
    }
    Err(format!("oidc: id token issued by a different provider, expected {issuer:?} got {given:?}"))
}

fn check_audience(claims: &Claims, audiences: &[String]) -> Result<(), String> {
    let given: Vec<&str> = match claims.get("aud") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => {
            let texts: Option<Vec<&str>> = many.iter().map(Value::as_str).collect();
            texts.ok_or("oidc: failed to unmarshal claims: json: cannot unmarshal aud")?
        }
        Some(_) => return Err("oidc: failed to unmarshal claims: json: cannot unmarshal aud".to_owned()),
    };
    if audiences.iter().any(|audience| given.contains(&audience.as_str())) {
        return Ok(());
    }
    let quoted = |texts: &mut dyn Iterator<Item = &str>| -> String {
        texts.map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" ")
    };
    let given = quoted(&mut given.into_iter());
    match audiences {
        [one] => Err(format!("oidc: expected audience {one:?} got [{given}]")),
        many => {
            let mut sorted: Vec<&str> = many.iter().map(String::as_str).collect();
            sorted.sort_unstable();
            Err(format!("oidc: expected audience in [{}] got [{given}]", quoted(&mut sorted.into_iter())))
        }
    }
}

fn check_times(claims: &Claims, now: Timestamp) -> Result<(), String> {
    let seconds = |name: &str| -> Result<Option<f64>, String> {
        match claims.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let number = value.as_f64().filter(|number| number.is_finite());
                number.map(Some).ok_or_else(|| format!("oidc: failed to unmarshal claims: {name} is no time"))
            }
        }
    };
    let current = now.as_millisecond() as f64 / 1000.0;
    // A token without an expiry expired long ago.
    let expiry = seconds("exp")?.unwrap_or_default();
    if expiry < current {
        return Err(format!("oidc: token is expired (Token Expiry: {})", go_time(expiry)));
    }
    match seconds("nbf")? {
        Some(begin) if current + LEEWAY_SECONDS < begin => {
            Err(format!("oidc: current time {} before the nbf (not before) time: {}", go_time(current), go_time(begin)))
        }
        _ => Ok(()),
    }
}

/// A time as Go prints it, in UTC.
fn go_time(seconds: f64) -> String {
    match Timestamp::from_second(seconds as i64) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string(),
        Err(_) => seconds.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Claims {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn times_and_audiences_are_checked() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = now.as_second();
        for (claims, refused) in [
            (json!({"exp": at + 1}), None),
            (json!({"exp": at + 1, "nbf": at + 59}), None),
            (json!({"exp": at - 1}), Some("oidc: token is expired (Token Expiry: 2025-12-31 23:59:59 +0000 UTC)")),
            (json!({}), Some("oidc: token is expired (Token Expiry: 1970-01-01 00:00:00 +0000 UTC)")),
            (
                json!({"exp": at + 100, "nbf": at + 61}),
                Some(
                    "oidc: current time 2026-01-01 00:00:00 +0000 UTC before the nbf (not before) time: \
                     2026-01-01 00:01:01 +0000 UTC",
                ),
            ),
            (json!({"exp": "soon"}), Some("oidc: failed to unmarshal claims: exp is no time")),
        ] {
            assert_eq!(check_times(&object(claims), now).err().as_deref(), refused);
        }
        let one = ["a".to_owned()];
        let two = ["b".to_owned(), "a".to_owned()];
        assert!(check_audience(&object(json!({"aud": "a"})), &one).is_ok());
        assert!(check_audience(&object(json!({"aud": ["x", "a"]})), &two).is_ok());
        let refused = |claims: Value, audiences: &[String]| check_audience(&object(claims), audiences).unwrap_err();
        assert_eq!(refused(json!({"aud": ["x", "y"]}), &one), r#"oidc: expected audience "a" got ["x" "y"]"#);
        assert_eq!(refused(json!({"aud": "x"}), &two), r#"oidc: expected audience in ["a" "b"] got ["x"]"#);
        assert!(check_audience(&object(json!({"aud": 7})), &one).is_err());
        for (claims, refused) in [
            (json!({"sub": "a", "exp": 1.5}), None),
            (json!({"sub": 7}), Some("json: cannot unmarshal number into Go struct field idToken.sub of type string")),
            (json!({"exp": "x"}), Some(r#"json: invalid number literal, trying to unmarshal "\"x\"" into Number"#)),
        ] {
            assert_eq!(check_types(&object(claims)).err().as_deref(), refused);
        }
    }

    #[test]
    fn only_compact_tokens_are_parsed() {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let token = format!("{}.{}.c2ln", part("{}"), part(r#"{"iss":"accounts.google.com"}"#));
        assert_eq!(UntrustedToken::parse(&token).unwrap().issuer(), GOOGLE);
        for wrong in ["", "a", "a.b", "a.b.c", "....", "{}", &format!("{token}.x"), &format!("{}.[].x", part("[]"))] {
            assert!(UntrustedToken::parse(wrong).is_none(), "{wrong}");
        }
    }
}
