//! Lua, what a script can see: objects and errors as libraries written for lua-nginx-module expect them.

use super::lua::lua;
use weir_tests::{Signal, Site, skip_on_oracle, until};

fn site(outer: &str, locations: &str) -> Option<Site> {
    lua(&format!(
        "{outer}
        default_type text/plain;
        lua_shared_dict shared 1m;
        server {{ listen 127.0.0.1:%%PORT%%; server_name localhost;
            {locations}
        }}"
    ))
}

const OOPS: &str = "init_by_lua_block { local function deep() error('oops') end deep() }";

#[test]
fn an_error_of_init_by_lua_is_an_error_of_the_start() {
    let Some(site) = site(OOPS, "location / { return 200 ok; }") else {
        return;
    };
    let finished = site.run(&[]);
    assert_eq!(finished.code, 1, "{finished:?}");
    assert!(
        finished.stderr.contains("init_by_lua error: "),
        "{finished:?}"
    );
    assert!(finished.stderr.contains("oops"), "{finished:?}");
    assert!(finished.stderr.contains("stack traceback:"), "{finished:?}");
}

#[test]
fn an_error_of_init_by_lua_is_found_by_the_test_of_the_configuration() {
    if skip_on_oracle("nginx does not run init_by_lua for -t (docs/compat.md#lua)") {
        return;
    }
    let Some(site) = site(OOPS, "location / { return 200 ok; }") else {
        return;
    };
    let finished = site.test();
    assert_eq!(finished.code, 1, "{finished:?}");
    assert!(
        finished.stderr.contains("init_by_lua error: "),
        "{finished:?}"
    );
}

#[test]
fn code_of_init_by_lua_that_ends_its_process_is_an_error_of_the_start() {
    if skip_on_oracle("nginx's master ends with the code that the script says") {
        return;
    }
    let Some(site) = site(
        "init_by_lua_block { os.exit(0) }",
        "location / { return 200 ok; }",
    ) else {
        return;
    };
    let finished = site.run(&[]);
    assert_eq!(finished.code, 1, "{finished:?}");
    assert!(
        finished.stderr.contains("ended its process"),
        "{finished:?}"
    );
}

#[test]
fn a_reload_whose_init_by_lua_fails_changes_nothing() {
    let server = |outer: &str, text: &str| {
        format!(
            "{outer} server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200 {text}; }} }}"
        )
    };
    let Some(site) = lua(&server("init_by_lua_block { x = 1 }", "old")) else {
        return;
    };
    let mut running = site.tolerate("init_by_lua error: ").start();
    assert_eq!(running.get("/").text(), "old");
    running.reconfigure(&server(OOPS, "new"));
    running.signal(Signal::HUP);
    running.line("error.log", "init_by_lua error: ");
    assert_eq!(running.get("/").text(), "old");
    // Nothing of the bad one is left: the next one is taken.
    running.reconfigure(&server("init_by_lua_block { x = 2 }", "new"));
    running.signal(Signal::HUP);
    assert!(until(|| (running.get("/").text() == "new").then_some(())).is_some());
}

#[test]
fn a_server_whose_first_worker_cannot_start_ends() {
    if skip_on_oracle("init_by_lua runs in nginx's master, once") {
        return;
    }
    // It fails when it is run for the second time: in the worker.
    let Some(site) = site(
        "init_by_lua_block {
            local seen = io.open('%%DIR%%/seen')
            if seen then error('the second time') end
            io.open('%%DIR%%/seen', 'w'):close()
        }",
        "location / { return 200 ok; }",
    ) else {
        return;
    };
    let site = site.tolerate("cannot be respawned");
    let finished = site.run(&[]);
    assert_eq!(finished.code, 1, "{finished:?}");
}
