//! Tests of the JSON scanner.

use super::*;

fn problem(text: &str) -> String {
    let mut scanner = Scanner::new(text.as_bytes());
    let outcome = scanner.skip_value().and_then(|()| scanner.finish());
    outcome.map_or_else(|error| error.to_string(), |()| "fine".to_owned())
}

#[test]
fn syntax_errors_read_as_known() {
    for (text, expected) in [
        ("{not json", "invalid character 'n' looking for beginning of object key string"),
        ("", "unexpected end of JSON input"),
        ("  ", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        (r#"{"a"}"#, "invalid character '}' after object key"),
        (r#"{"a":1 2}"#, "invalid character '2' after object key:value pair"),
        (r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string"),
        ("[1,]", "invalid character ']' looking for beginning of value"),
        ("[1 2]", "invalid character '2' after array element"),
        ("{} x", "invalid character 'x' after top-level value"),
        ("-x", "invalid character 'x' in numeric literal"),
        ("1.x", "invalid character 'x' after decimal point in numeric literal"),
        ("1e+x", "invalid character 'x' in exponent of numeric literal"),
        ("01", "invalid character '1' after top-level value"),
        ("nul", "invalid character ' ' in literal null (expecting 'l')"),
        ("-", "invalid character ' ' in numeric literal"),
        ("\"abc", "unexpected end of JSON input"),
        ("nulx", "invalid character 'x' in literal null (expecting 'l')"),
        ("tru3", "invalid character '3' in literal true (expecting 'e')"),
        ("\"a\nb\"", r"invalid character '\n' in string literal"),
        (r#""\q""#, "invalid character 'q' in string escape code"),
        (r#""\u12g4""#, r"invalid character 'g' in \u hexadecimal character escape"),
        (r#"{"a":[{"b":[]},1.5e-3,true,null,"x\u00e9"]}"#, "fine"),
    ] {
        assert_eq!(problem(text), expected, "{text}");
    }
}

#[test]
fn depth_has_a_limit() {
    assert_eq!(problem(&"[".repeat(10_001)), "invalid character '[' exceeded max depth");
    assert_eq!(problem(&("[".repeat(9_999) + &"]".repeat(9_999))), "fine");
}

#[test]
fn strings_are_unescaped() {
    for (text, expected) in [
        (r#""plain""#, "plain"),
        (r#""a\"\\\/\b\f\n\r\tz""#, "a\"\\/\x08\x0c\n\r\tz"),
        (r#""\u00e9\ud83d\ude00""#, "é😀"),
        (r#""\ud83dx""#, "\u{fffd}x"),
        (r#""\ud83d\u0041""#, "\u{fffd}A"),
    ] {
        assert_eq!(Scanner::new(text.as_bytes()).string().expect("string"), expected);
    }
    assert_eq!(Scanner::new(b"\"a\xffb\"").string().expect("string"), "a\u{fffd}b");
}
