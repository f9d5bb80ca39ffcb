//! A headless Chromium, driven through its DevTools protocol.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::TIMEOUT;

/// One page in a browser of its own, which ends with the test.
pub struct Browser {
    process: Child,
    _profile: tempfile::TempDir,
    connection: WebSocketStream<TcpStream>,
    session: String,
    last_id: u64,
    /// What went wrong in the page: exceptions, violations of its policy, failed downloads of its files.
    pub errors: Vec<String>,
}

impl Browser {
    pub async fn start() -> Browser {
        let profile = tempfile::tempdir().expect("a temporary directory");
        let mut process = Command::new("chromium")
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--window-size=1280,900"])
            .args(["--disable-dev-shm-usage", "--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .env("HOME", profile.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("chromium is installed: scripts/packages");
        let mut lines = BufReader::new(process.stderr.take().expect("its errors are piped")).lines();
        let address = lines
            .find_map(|line| line.ok()?.strip_prefix("DevTools listening on ").map(str::to_owned))
            .expect("chromium prints its address");
        // Its pipe must not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        let host = address.strip_prefix("ws://").and_then(|rest| rest.split('/').next()).expect("an address");
        let stream = TcpStream::connect(host).await.expect("chromium listens");
        let (connection, _) = tokio_tungstenite::client_async(&address, stream).await.expect("a WebSocket");
        let mut browser =
            Browser { process, _profile: profile, connection, session: String::new(), last_id: 0, errors: Vec::new() };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attached = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attached).await;
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser
    }

    pub async fn open(&mut self, address: &str) {
        let opened = self.call("Page.navigate", json!({"url": address})).await;
        assert!(opened.get("errorText").is_none(), "cannot open the page: {opened}");
    }

    /// The value of an expression.
    pub async fn evaluate(&mut self, expression: &str) -> Value {
        let arguments = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call("Runtime.evaluate", arguments).await;
        if let Some(failure) = result.get("exceptionDetails") {
            panic!("{expression} failed: {failure}");
        }
        result["result"]["value"].clone()
    }

    /// Waits until the page shows a text.
    pub async fn shows(&mut self, text: &str) {
        let text = serde_json::to_string(text).expect("a string");
        self.until(&format!("document.body?.innerText.includes({text})")).await;
    }

    /// Waits until an expression is true.
    pub async fn until(&mut self, expression: &str) {
        let started = Instant::now();
        while self.evaluate(&format!("Boolean({expression})")).await != json!(true) {
            if started.elapsed() > TIMEOUT {
                let text = self.evaluate("document.body.innerText.slice(0, 3000)").await;
                panic!("timed out waiting for {expression}; errors: {:?}; the page shows:\n{text}", self.errors);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Clicks the first button or link with this text.
    pub async fn click(&mut self, text: &str) {
        let quoted = serde_json::to_string(text).expect("a string");
        let found = format!(
            "[...document.querySelectorAll('dialog button, button, a')].find((one) => one.textContent.trim() === {quoted})"
        );
        self.until(&found).await;
        self.evaluate(&format!("{found}.click()")).await;
    }

    /// Shows a page of the cluster's page.
    pub async fn go(&mut self, page: &str) {
        let hash = serde_json::to_string(&format!("#/{page}")).expect("a string");
        self.evaluate(&format!("location.hash = {hash}")).await;
    }

    /// Clicks a button of the open dialog.
    pub async fn confirm(&mut self, label: &str) {
        let label = serde_json::to_string(label).expect("a string");
        let button =
            format!("[...document.querySelectorAll('dialog button')].find((one) => one.textContent === {label})");
        self.until(&button).await;
        self.evaluate(&format!("{button}.click()")).await;
    }

    /// Enters text into the first field that a selector finds.
    pub async fn enter(&mut self, selector: &str, text: &str) {
        let [selector, text] = [selector, text].map(|one| serde_json::to_string(one).expect("a string"));
        self.until(&format!("document.querySelector({selector})")).await;
        self.evaluate(&format!(
            "(() => {{ const field = document.querySelector({selector}); field.value = {text}; \
             for (const type of ['input', 'change']) field.dispatchEvent(new Event(type, {{ bubbles: true }})); }})()"
        ))
        .await;
    }

    /// Presses a key, as a person does: what it does is up to the browser. `modifiers` is 8 for Shift.
    pub async fn press(&mut self, key: &str, modifiers: u8) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            other => panic!("no code of the key {other}"),
        };
        let mut event =
            json!({"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers});
        if key == "Enter" {
            event["text"] = json!("\r");
        }
        self.call("Input.dispatchKeyEvent", event).await;
        let up =
            json!({"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers});
        self.call("Input.dispatchKeyEvent", up).await;
    }

    /// Prefers `light` or `dark` colors.
    pub async fn prefer(&mut self, scheme: &str) {
        let features = json!([
            {"name": "prefers-color-scheme", "value": scheme},
            // Colors that are on their way to others have no contrast of their own.
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// The addresses of all open pages of the browser.
    #[allow(dead_code, reason = "not every test program opens further pages")]
    pub async fn addresses(&mut self) -> Vec<String> {
        let targets = self.call("Target.getTargets", json!({})).await;
        let targets = targets["targetInfos"].as_array().cloned().unwrap_or_default();
        targets.iter().filter_map(|target| Some(target["url"].as_str()?.to_owned())).collect()
    }

    /// Controls without a name that a screen reader could say.
    pub async fn unnamed_controls(&mut self) -> Vec<String> {
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().cloned().unwrap_or_default();
        let roles = ["button", "link", "textbox", "searchbox", "combobox", "checkbox", "spinbutton", "meter", "image"];
        nodes
            .iter()
            .filter(|node| node["ignored"] != json!(true))
            .filter(|node| node["role"]["value"].as_str().is_some_and(|role| roles.contains(&role)))
            .filter(|node| node["name"]["value"].as_str().is_none_or(|name| name.trim().is_empty()))
            .map(|node| node["role"]["value"].to_string())
            .collect()
    }

    /// Saves a picture of the page where `KNARR_SCREENSHOTS` names a directory.
    pub async fn picture(&mut self, name: &str) {
        let Some(directory) = std::env::var_os("KNARR_SCREENSHOTS") else { return };
        // Without the empty rest of a short page.
        let bottom = "Math.min(innerHeight, Math.ceil(document.querySelector('main').getBoundingClientRect().bottom))";
        let clip = json!({"x": 0, "y": 0, "width": 1280, "height": self.evaluate(bottom).await, "scale": 1});
        let picture = self.call("Page.captureScreenshot", json!({"format": "png", "clip": clip})).await;
        use base64::Engine as _;
        let data = picture["data"].as_str().unwrap_or_default();
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).expect("base64");
        std::fs::write(Path::new(&directory).join(format!("{name}.png")), bytes).expect("the picture is saved");
    }

    /// The same in light and in dark colors.
    pub async fn pictures(&mut self, name: &str) {
        self.prefer("dark").await;
        self.picture(&format!("{name}-dark")).await;
        self.prefer("light").await;
        self.picture(name).await;
    }

    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let mut request = json!({"id": id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            request["sessionId"] = self.session.as_str().into();
        }
        self.connection.send(Message::text(request.to_string())).await.expect("chromium runs");
        loop {
            let message = tokio::time::timeout(TIMEOUT, self.connection.next()).await.expect("chromium responds");
            let message = message.expect("chromium runs").expect("a message");
            let Ok(text) = message.to_text() else { continue };
            let Ok(message) = serde_json::from_str::<Value>(text) else { continue };
            if message["id"] == json!(id) {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.errors.push(event["params"]["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if event["params"]["entry"]["source"] == json!("security") => {
                self.errors.push(event["params"]["entry"]["text"].to_string());
            }
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
