//! String formats of JSON schemas.

use std::net::Ipv6Addr;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;

use crate::cidr::{parse_network_sloppy, parse_sloppy};
use crate::go_duration;

/// The check of the format with that name, ignoring dashes. None if the name is unknown.
pub(crate) fn by_name(name: &str) -> Option<fn(&str) -> bool> {
    Some(match name.replace('-', "").as_str() {
        "bsonobjectid" => |text| text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "uri" => is_uri,
        "email" => is_email,
        "hostname" => is_hostname,
        "ipv4" => |text| text.contains('.') && parse_sloppy(text).is_some(),
        "ipv6" => |text| text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => |text| parse_network_sloppy(text).is_some(),
        "mac" => is_mac,
        "uuid" => |text| UUID.is_match(text),
        "uuid3" => |text| UUID3.is_match(text),
        "uuid4" => |text| UUID4.is_match(text),
        "uuid5" => |text| UUID5.is_match(text),
        "isbn" => |text| is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10,
        "isbn13" => is_isbn13,
        "creditcard" => is_credit_card,
        "ssn" => |text| SSN.is_match(text),
        "hexcolor" => |text| HEX_COLOR.is_match(text),
        "rgbcolor" => |text| RGB_COLOR.is_match(text),
        "byte" => |text| !text.is_empty() && STANDARD.decode(text).is_ok(),
        "password" => |_| true,
        "date" => is_date,
        "datetime" => is_date_time,
        "duration" => is_duration,
        "k8sshortname" => |text| text.len() <= 63 && SHORT_NAME.is_match(text),
        "k8slongname" => |text| text.len() <= 253 && LONG_NAME.is_match(text),
        _ => return None,
    })
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|error| panic!("invalid pattern in this file: {error}"))
}

macro_rules! patterns {
    ($($name:ident = $text:expr;)*) => {
        $(static $name: LazyLock<Regex> = LazyLock::new(|| pattern($text));)*
    };
}

patterns! {
    UUID = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
    UUID3 = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
    UUID4 = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$";
    UUID5 = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$";
    SSN = "^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$";
    HEX_COLOR = "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$";
    RGB_COLOR = concat!(
        r"^rgb\(\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])",
        r"\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*\)$"
    );
    CREDIT_CARD = concat!(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}",
        "|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$"
    );
    HOSTNAME = concat!(
        r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)",
        r"|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
    );
    DURATION_PARTS = r"(([0-9]+)\s*([A-Za-zµ]+))";
    SHORT_NAME = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
    LONG_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
}

fn is_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|byte| byte < 0x20 || byte == 0x7f || byte == b' ') {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let mut letters = scheme.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        && !rest.is_empty()
}

fn is_email(text: &str) -> bool {
    let address = match text.rsplit_once('<') {
        Some((_, rest)) => match rest.strip_suffix('>') {
            Some(address) => address,
            None => return false,
        },
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let atom = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let dotted =
        |part: &str| !part.is_empty() && part.split('.').all(|piece| !piece.is_empty() && piece.chars().all(atom));
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    (quoted || dotted(local)) && (dotted(domain) || domain.starts_with('[') && domain.ends_with(']'))
}

fn is_hostname(text: &str) -> bool {
    HOSTNAME.is_match(text) && text.len() <= 255 && text.split('.').all(|part| part.len() <= 63)
}

fn is_mac(text: &str) -> bool {
    let hex = |part: &str, digits: usize| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let groups = |separator: char, digits: usize, counts: [usize; 3]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len()) && parts.iter().all(|part| hex(part, digits))
    };
    groups(':', 2, [6, 8, 20]) || groups('-', 2, [6, 8, 20]) || groups('.', 4, [3, 4, 10])
}

fn is_isbn10(text: &str) -> bool {
    let plain = text.replace(['-', ' '], "");
    let digits = plain.char_indices().map(|(at, c)| match c {
        'X' if at == 9 => Some(10),
        c => c.to_digit(10),
    });
    let digits: Option<Vec<u32>> = digits.collect();
    digits.is_some_and(|digits| {
        digits.len() == 10 && digits.iter().zip(1..).map(|(digit, at)| digit * at).sum::<u32>() % 11 == 0
    })
}

fn is_isbn13(text: &str) -> bool {
    let digits: Option<Vec<u32>> = text.replace(['-', ' '], "").chars().map(|c| c.to_digit(10)).collect();
    digits.is_some_and(|digits| {
        digits.len() == 13
            && digits.iter().zip([1, 3].into_iter().cycle()).map(|(digit, by)| digit * by).sum::<u32>() % 10 == 0
    })
}

fn is_credit_card(text: &str) -> bool {
    let plain: String = text.chars().filter(char::is_ascii_digit).collect();
    let doubled = |(at, digit): (usize, u32)| match digit * 2 {
        twice if at % 2 == 1 => twice / 10 + twice % 10,
        _ => digit,
    };
    let sum: u32 = plain.chars().rev().filter_map(|c| c.to_digit(10)).enumerate().map(doubled).sum();
    CREDIT_CARD.is_match(&plain) && sum.is_multiple_of(10)
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let Some((date, time)) = lower.split_once('t') else { return false };
    let Some(zone) = time.find(['z', '+', '-']) else { return false };
    let (clock, zone) = time.split_at(zone);
    let (clock, fraction) = clock.split_once('.').map_or((clock, None), |(clock, fraction)| (clock, Some(fraction)));
    let number = |part: &str, below: u8| part.len() == 2 && part.parse::<u8>().is_ok_and(|number| number < below);
    let parts: Vec<&str> = clock.split(':').collect();
    let zone_fits = zone == "z"
        || zone.len() == 6 && zone[1..].split(':').all(|part| part.len() == 2 && part.parse::<u8>().is_ok());
    is_date(date)
        && matches!(&parts[..], [hour, minute, second] if number(hour, 24) && number(minute, 60) && number(second, 60))
        && fraction.is_none_or(|fraction| !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit()))
        && zone_fits
}

/// Durations such as `1h30m`, or with words such as `5 minutes`.
fn is_duration(text: &str) -> bool {
    const WORDS: [&str; 8] = ["nano", "micro", "milli", "second", "minute", "hour", "day", "week"];
    const SHORT: [&str; 20] = [
        "ns", "nanos", "us", "µs", "micros", "ms", "millis", "s", "sec", "secs", "m", "min", "mins", "h", "hr", "hrs",
        "d", "w", "wk", "wks",
    ];
    go_duration::parse(text).is_ok()
        || DURATION_PARTS.captures_iter(text).any(|parts| {
            let unit = parts[3].to_lowercase();
            SHORT.contains(&unit.as_str()) || WORDS.iter().any(|word| unit.starts_with(word))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_valid_and_refuse_invalid_texts() {
        for (name, right, wrong) in [
            ("uri", "https://x.y/z?a=b", "no uri"),
            ("email", "a.b@c.example", "a@"),
            ("hostname", "a-b.example.com", "a_b"),
            ("ipv4", "10.0.0.1", "10.0.0"),
            ("ipv6", "fe80::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("mac", "01:23:45:67:89:ab", "01:23"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
            ("uuid4", "123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
            ("isbn10", "0321751043", "0321751044"),
            ("isbn13", "978-0321751041", "978-0321751042"),
            ("creditcard", "4012-8888-8888-1881", "4012888888881882"),
            ("ssn", "111-11-1111", "111-1-1111"),
            ("hexcolor", "#FFFFFF", "#GG"),
            ("rgbcolor", "rgb(1,2,3)", "rgb(1,2)"),
            ("byte", "aGk=", "a"),
            ("date", "2026-02-28", "2026-02-30"),
            ("date-time", "2026-02-28T01:02:03.5+01:00", "2026-02-28 01:02:03Z"),
            ("duration", "1h30m", "fast"),
            ("duration", "5 minutes", "minutes"),
            ("k8s-short-name", "abc", "a.b"),
            ("k8s-long-name", "a.b", "A.b"),
        ] {
            let format = by_name(name).expect("known");
            assert!(format(right), "{name}: {right}");
            assert!(!format(wrong), "{name}: {wrong}");
        }
        assert!(by_name("int32").is_none());
    }
}
