use super::*;

fn parse(text: &str) -> Result<Registries, String> {
    Registries::parse(Path::new("r.yaml"), text).map_err(|error| error.to_string())
}

#[test]
fn mirrors_become_hosts_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, "x").expect("written");
        path.display().to_string()
    };
    let (ca, cert, key) = (file("ca"), file("cert"), file("key"));
    let registries = parse(&format!(
        "mirrors:\n  docker.io:\n    endpoint: ['https://m.local:5000', 'http://n.local/proxy/v2/']\n  \
         r.io:\n    endpoint: ['m.local:5000']\n    rewrite:\n      '^(.*)$': 'team/r/$1'\n  \
         '*':\n    endpoint: ['https://all.local']\n\
         configs:\n  'm.local:5000':\n    tls: {{ca_file: {ca}, cert_file: {cert}, key_file: {key}}}\n  \
         own.io:\n    tls: {{insecure_skip_verify: true}}\n"
    ))
    .unwrap_or_else(|error| panic!("{error}"));
    let files = registries.files();
    let names: Vec<&String> = files.keys().collect();
    assert_eq!(names, ["_default", "docker.io", "m.local:5000", "own.io", "r.io"]);
    let content: BTreeMap<&String, Table> =
        files.iter().map(|(name, text)| (name, text.parse().expect("TOML"))).collect();
    let host = |file: &str, host: &str| content[&file.to_owned()]["host"].get(host).cloned();
    let first = host("docker.io", "https://m.local:5000").expect("the mirror");
    assert_eq!(first["ca"], Value::from(ca));
    assert_eq!(first["client"][0], Value::Array(vec![cert.into(), key.into()]));
    assert_eq!(first.get("override_path"), None);
    let second = host("docker.io", "http://n.local/proxy/v2").expect("the mirror");
    assert_eq!(second["override_path"], Value::from(true));
    let rewritten = host("r.io", "https://m.local:5000/v2/team/r").expect("the mirror");
    assert_eq!(rewritten["override_path"], Value::from(true));
    assert_eq!(content[&"own.io".to_owned()]["skip_verify"], Value::from(true));
    assert!(host("own.io", "https://all.local").is_some() && host("_default", "https://all.local").is_some());
}

#[test]
fn credentials_are_for_the_hosts_of_a_pull_alone() {
    let auth = base64::engine::general_purpose::STANDARD.encode("u2:p:2");
    let registries = parse(&format!(
        "mirrors: {{docker.io: {{endpoint: [https://m.local]}}}}\n\
         configs:\n  m.local: {{auth: {{username: u1, password: p1}}}}\n  docker.io: {{auth: {{auth: {auth}}}}}\n  \
         other.io: {{auth: {{identity_token: t}}}}\n"
    ))
    .unwrap_or_else(|error| panic!("{error}"));
    let shown = |registry: &str| -> Vec<String> {
        let logins = registries.logins(registry);
        logins
            .into_iter()
            .map(|one| format!("{} {} {} {}", one.host, one.username, one.password, one.identity_token))
            .collect()
    };
    assert_eq!(shown("docker.io"), ["m.local u1 p1 ", "registry-1.docker.io u2 p:2 "]);
    assert_eq!(shown("other.io"), ["other.io   t"]);
    assert_eq!(shown("free.io"), Vec::<String>::new());
}

#[test]
fn wrong_files_are_refused_and_show_no_password() {
    for (text, expected) in [
        (
            "mirrors: {'a/b': {}}",
            "r.yaml: mirrors.a/b: the name is not a registry such as docker.io or registry.local:5000",
        ),
        (
            "mirrors: {'..': {}}",
            "r.yaml: mirrors...: the name is not a registry such as docker.io or registry.local:5000",
        ),
        (
            "mirrors: {a.io: {endpoint: ['ftp://x']}}",
            "r.yaml: mirrors.a.io.endpoint: \"ftp://x\" has the scheme \"ftp\", expected http or https",
        ),
        (
            "mirrors: {a.io: {endpoint: ['https://x y']}}",
            "r.yaml: mirrors.a.io.endpoint: \"https://x y\" is not a URL such as https://mirror.local:5000",
        ),
        (
            "mirrors: {a.io: {rewrite: {'^x/(.*)': 'y/$1'}}}",
            "r.yaml: mirrors.a.io.rewrite: \"^x/(.*)\": \"y/$1\" cannot be expressed: containerd can only put a path \
             before names, as \"^(.*)$\": \"path/$1\" does",
        ),
        ("configs: {a.io: {tls: {cert_file: /x}}}", "r.yaml: configs.a.io.tls: cert_file and key_file belong together"),
        ("configs: {a.io: {tls: {ca_file: /nonexistent}}}", "r.yaml: configs.a.io.tls: there is no file /nonexistent"),
        (
            "configs: {a.io: {auth: {auth: SECRET}}}",
            "r.yaml: configs.a.io.auth: auth is not the Base64 form of user:password",
        ),
    ] {
        assert_eq!(parse(text).err().as_deref(), Some(expected), "{text}");
    }
    let error = parse("configs: {a.io: {auth: {password: [SECRET]}}}").err().expect("refused");
    assert!(
        error.starts_with("r.yaml is not a registries file: error in line 1") && !error.contains("SECRET"),
        "{error}"
    );
    let error = parse("mirrors: {a.io: {endpoit: []}}").err().expect("refused");
    assert!(error.contains("unknown field `endpoit`"), "{error}");
    assert!(parse("").is_ok());
}

#[test]
fn files_of_others_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).join("hosts.toml");
    std::fs::create_dir(directory.path().join("mine.io")).expect("made");
    std::fs::write(path("mine.io"), "server = 'x'").expect("written");
    let with = |text: &str| parse(text).unwrap_or_else(|error| panic!("{error}")).write(directory.path());
    with("mirrors: {a.io: {endpoint: [m]}, b.io: {endpoint: [m]}}").expect("written");
    assert!(path("a.io").exists() && path("b.io").exists());
    with("mirrors: {b.io: {endpoint: [m]}}").expect("written");
    assert!(!directory.path().join("a.io").exists() && path("b.io").exists() && path("mine.io").exists());
    assert!(matches!(with("mirrors: {mine.io: {endpoint: [m]}}"), Err(RegistriesError::Foreign { .. })));
}
