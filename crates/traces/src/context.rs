//! The place of a span in a trace, as the `traceparent` header carries it (W3C Trace Context).

use http::{HeaderMap, HeaderName, HeaderValue};

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Identifies a span, and says whether its trace is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: u128,
    pub span: u64,
    pub is_sampled: bool,
}

impl TraceContext {
    /// The context of a request; `None` without a valid one.
    pub fn of_headers(headers: &HeaderMap) -> Option<TraceContext> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let value = values.next()?.to_str().ok()?;
        // Two senders disagree: neither is believed.
        if values.next().is_some() { None } else { TraceContext::parse(value) }
    }

    /// Reads `VERSION-TRACE-SPAN-FLAGS`. Later versions may have more after that.
    pub fn parse(text: &str) -> Option<TraceContext> {
        let mut parts = text.trim().split('-');
        let version = hex(parts.next()?, 2)?;
        let (trace, span) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?);
        let flags = hex(parts.next()?, 2)?;
        let has_more = parts.next().is_some();
        if version == 0xff || (version == 0 && has_more) || trace == 0 || span == 0 {
            return None;
        }
        Some(TraceContext { trace, span: u64::try_from(span).ok()?, is_sampled: flags & 1 == 1 })
    }

    pub fn header(&self) -> HeaderValue {
        let text = format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled));
        // Hexadecimal digits and hyphens only.
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// A number of exactly `digits` lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_valid = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_valid.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn contexts_are_read_and_written() {
        let context = TraceContext::parse(VALID).expect("a context");
        assert!(context.is_sampled);
        assert_eq!(context.header(), VALID);
        for invalid in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(invalid), None, "{invalid}");
        }
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more";
        assert!(TraceContext::parse(later).is_some_and(|context| !context.is_sampled));
    }

    #[test]
    fn two_headers_are_none() {
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, HeaderValue::from_static(VALID));
        assert!(TraceContext::of_headers(&headers).is_some());
        headers.append(TRACEPARENT, HeaderValue::from_static(VALID));
        assert_eq!(TraceContext::of_headers(&headers), None);
    }
}
