//! The default name of a field manager.

/// The maximum length of a manager name.
const MAX_LENGTH: usize = 128;

/// The name given with the request, or else the start of the client's User-Agent.
pub fn manager_name(field_manager: &str, user_agent: &str) -> String {
    if !field_manager.is_empty() {
        return field_manager.to_owned();
    }
    let mut name = String::new();
    for c in user_agent.split('/').next().unwrap_or_default().chars() {
        if c.is_control() || (c.is_whitespace() && c != ' ') {
            continue;
        }
        if name.len() + c.len_utf8() > MAX_LENGTH {
            break;
        }
        name.push(c);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_request_or_the_user_agent() {
        for (given, agent, expected) in [
            ("me", "kubectl/v1.36", "me"),
            ("", "kubectl/v1.36 (linux/amd64)", "kubectl"),
            ("", "Mozilla 5", "Mozilla 5"),
            ("", "a\tb", "ab"),
            ("", "", ""),
        ] {
            assert_eq!(manager_name(given, agent), expected);
        }
        assert_eq!(manager_name("", &"x".repeat(300)).len(), 128);
    }
}
