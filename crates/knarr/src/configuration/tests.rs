use super::*;

fn command() -> Command {
    let server = Command::new("server")
        .arg(Arg::new("cluster_cidr").long("cluster-cidr").action(ArgAction::Append))
        .arg(Arg::new("node_name").long("node-name"))
        .arg(Arg::new("disable_agent").long("disable-agent").action(ArgAction::SetTrue));
    let agent = Command::new("agent").arg(Arg::new("token").long("token").env("KNARR_TOKEN"));
    Command::new("knarr").subcommand(server).subcommand(agent).subcommand(Command::new("scheduler"))
}

#[test]
fn the_file_s_settings_are_used_as_if_typed() {
    let command = command();
    let file = "cluster-cidr: [10.1.0.0/16, fd00::/48]\nnode-name: a\ndisable-agent: true\ntoken: t\n";
    let settings = parse(file, Path::new(FILE), &command).unwrap();
    for (typed, variable, expected) in [
        (
            &["knarr", "server"][..],
            false,
            &["--cluster-cidr=10.1.0.0/16", "--cluster-cidr=fd00::/48", "--node-name=a", "--disable-agent"][..],
        ),
        (&["knarr", "server", "--node-name", "b", "--cluster-cidr=10.2.0.0/16"], false, &["--disable-agent"]),
        (&["knarr", "agent"], false, &["--token=t"]),
        (&["knarr", "agent"], true, &[]),
    ] {
        let typed: Vec<OsString> = typed.iter().map(OsString::from).collect();
        let reader = command.find_subcommand(typed[1].to_str().unwrap()).unwrap();
        let merged = merge(typed.clone(), &settings, reader, |_| variable);
        assert_eq!(merged[typed.len()..].iter().collect::<Vec<_>>(), expected, "{typed:?}");
    }
}

/// Settings of the file are added after the subcommand, where clap accepts only its own flags and global ones.
#[test]
fn flags_of_commands_with_subcommands_are_set_by_the_file() {
    let command = crate::commands::command();
    let readers = READERS.iter().filter_map(|name| command.find_subcommand(name));
    let lost: Vec<String> = readers
        .filter(|reader| reader.is_subcommand_required_set())
        .flat_map(|reader| reader.get_arguments().filter(|argument| !argument.is_global_set()))
        .map(ToString::to_string)
        .collect();
    assert_eq!(lost, Vec::<String>::new());
}

#[test]
fn later_files_replace_settings_of_earlier_ones() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.yaml");
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    };
    let shown = || {
        let read = read(&file, false, &command()).unwrap();
        let line = |setting: &Setting| {
            let file = setting.file.file_name().unwrap().to_string_lossy().into_owned();
            format!("{}={} {file}", setting.key, setting.values.join(","))
        };
        read.iter().map(line).collect::<Vec<_>>()
    };
    assert!(shown().is_empty());
    write("config.yaml.d/20.yaml", "node-name: c\n");
    write("config.yaml.d/10.yaml", "node-name: b\ncluster-cidr: 10.2.0.0/16\n");
    write("config.yaml.d/30.txt", "node-name: d\n");
    assert_eq!(shown(), ["cluster-cidr=10.2.0.0/16 10.yaml", "node-name=c 20.yaml"]);
    write("config.yaml", "node-name: a\ntoken: t\n");
    assert_eq!(shown(), ["token=t config.yaml", "cluster-cidr=10.2.0.0/16 10.yaml", "node-name=c 20.yaml"]);
    let wrong = write("config.yaml.d/40.yaml", "colour: red\n");
    let error = read(&file, false, &command()).unwrap_err().to_string();
    assert_eq!(error, format!("{} is invalid", wrong.display()));
}

#[test]
fn an_invalid_value_is_reported_with_its_file() {
    let command = Command::new("knarr").subcommand(
        Command::new("server").arg(Arg::new("max_pods").long("max-pods").value_parser(clap::value_parser!(u32))),
    );
    let words: Vec<OsString> = ["knarr", "server", "--max-pods=many"].map(OsString::from).into();
    let merged = |from_file| Merged { words: words.clone(), from_file };
    let error = command.clone().try_get_matches_from(&words).unwrap_err();
    let origin = merged(vec![("--max-pods=many".into(), FILE.into())]).origin_of(&error);
    assert_eq!(origin.as_deref(), Some("--max-pods is set in /etc/knarr/config.yaml"));
    assert_eq!(merged(Vec::new()).origin_of(&error), None);
}

#[test]
fn an_unknown_key_is_rejected_with_a_suggestion() {
    for (text, reason) in [
        ("clustercidr: 10.1.0.0/16", "did you mean \"cluster-cidr\"?"),
        ("node_name: a", "did you mean \"node-name\"?"),
        ("colour: red", "`knarr config show` lists all settings"),
        ("node-name: {a: b}", "must be a value or a list"),
        ("- node-name", "of the form `flag: value`"),
        ("disable-agent: on", "disable-agent must be true or false, not on"),
        ("disable-agent: [true, false]", "must be true or false"),
    ] {
        let error = parse(text, Path::new(FILE), &command()).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    for text in ["", "disable-agent: false", "disable-agent: 'true'", "disable-agent:"] {
        assert!(parse(text, Path::new(FILE), &command()).is_ok(), "{text}");
    }
}
