//! Lua, what a script can see: objects and errors as libraries written for lua-nginx-module expect them.

use super::lua::lua;
use weir_tests::{Server, Signal, Site, is_oracle, skip_on_oracle, until};

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

fn with(locations: &str) -> Option<Server> {
    Some(site("", locations)?.start())
}

fn script(code: &str) -> Option<Server> {
    with(&format!(
        "location / {{ content_by_lua_block {{ {code} }} }} location = /other {{ return 200 other; }}"
    ))
}

/// What scripts say, each with the text that is expected.
fn say(rows: &[(&str, &str)]) {
    say_beside("", rows);
}

/// The same, where scripts ask other locations.
fn say_beside(more: &str, rows: &[(&str, &str)]) {
    let locations: String = rows
        .iter()
        .enumerate()
        .map(|(n, (code, _))| {
            format!("location = /{n} {{ set $Mine old; content_by_lua_block {{ {code} }} }}\n")
        })
        .collect();
    let Some(server) = with(&format!("{locations}{more}")) else {
        return;
    };
    for (n, (code, text)) in rows.iter().enumerate() {
        let reply = server.get(&format!("/{n}?x=1"));
        assert_eq!(
            (reply.status, reply.text().trim_end()),
            (200, *text),
            "{code}"
        );
    }
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

/// Configurations are tested by programs that have them from others, such as an admission webhook.
#[test]
fn a_test_of_the_configuration_runs_none_of_its_code() {
    let code = "io.stderr:write('the code runs') error('oops')";
    let scripts = format!(
        "init_by_lua_block {{ {code} }} init_worker_by_lua_block {{ {code} }} exit_worker_by_lua_block {{ {code} }}"
    );
    let Some(site) = site(&scripts, "location / { return 200 ok; }") else {
        return;
    };
    let finished = site.run(&["-t"]);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(!finished.stderr.contains("the code runs"), "{finished:?}");
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

#[test]
fn a_light_thread_is_a_coroutine_with_a_status() {
    say(&[
        (
            "local t = ngx.thread.spawn(function() ngx.sleep(0.001) return 1 end)
             ngx.say(type(t), ' ', coroutine.status(t)) ngx.say(ngx.thread.wait(t))
             ngx.say(coroutine.status(t), ' ', coroutine.resume(t))",
            "thread running\ntrue1\ndead falsecannot resume dead coroutine",
        ),
        (
            "local t = ngx.thread.spawn(function() return 1 end) ngx.say(coroutine.status(t))
             ngx.thread.wait(t) ngx.say(ngx.thread.wait(t))",
            "zombie\nnilalready waited or killed",
        ),
        (
            "local t = ngx.thread.spawn(function() error({ a = 1 }) end)
             local ok, e = ngx.thread.wait(t) ngx.say(ok, type(e), e.a)",
            "falsetable1",
        ),
        (
            "local t = ngx.thread.spawn(function() ngx.sleep(0.01) return 'a' end)
             ngx.say(coroutine.resume(t)) ngx.say(ngx.thread.wait(t))",
            "falsecannot resume running coroutine\ntruea",
        ),
        (
            "local me = coroutine.running()
             local t = ngx.thread.spawn(function() ngx.say(coroutine.status(me)) end)
             local co = coroutine.create(function() ngx.say(coroutine.status(me)) end)
             coroutine.resume(co) ngx.say(coroutine.status(co))",
            "running\nnormal\ndead",
        ),
        // Nobody else resumes a coroutine that waits.
        (
            "local co = coroutine.create(function() ngx.sleep(0.03) return 'x' end)
             local t = ngx.thread.spawn(function() return coroutine.resume(co) end)
             ngx.say(coroutine.status(co)) ngx.say(coroutine.resume(co)) ngx.say(ngx.thread.wait(t))",
            "running\nfalsecannot resume running coroutine\ntruetruex",
        ),
        (
            "local co = coroutine.create(function() end) ngx.say(select('#', coroutine.resume(co)))",
            "1",
        ),
        (
            "local t = ngx.thread.spawn(function(...) return select('#', ...), ... end, nil, 2, nil)
             ngx.say(ngx.thread.wait(t))",
            "true3nil2nil",
        ),
        (
            "local f, g
             f = coroutine.create(function() coroutine.resume(g) end)
             g = coroutine.create(function() ngx.say(coroutine.resume(f)) ngx.say(coroutine.resume(g)) end)
             coroutine.resume(f)",
            "falsecannot resume normal coroutine\nfalsecannot resume running coroutine",
        ),
        // One that is begun runs before everything else.
        (
            "ngx.thread.spawn(function() ngx.thread.spawn(function() ngx.say('inner') end) ngx.say('outer') end)
             ngx.say('script')",
            "inner\nscript\nouter",
        ),
        // Only the last one of the list has to be there.
        (
            "local a = ngx.thread.spawn(function() ngx.sleep(0.03) return 'a' end)
             local b = ngx.thread.spawn(function() return 'b' end)
             ngx.say(ngx.thread.wait(a, b)) ngx.say(ngx.thread.wait(b, a))",
            "trueb\ntruea",
        ),
    ]);
}

#[test]
fn a_light_thread_that_waits_is_killed() {
    say(&[
        (
            "local t = ngx.thread.spawn(function() ngx.sleep(3600) ngx.say('never') end)
             ngx.say(ngx.thread.kill(t)) ngx.say(coroutine.status(t)) ngx.say(ngx.thread.kill(t))
             ngx.say(ngx.thread.wait(t))",
            "1\ndead\nnilalready waited or killed\nnilalready waited or killed",
        ),
        (
            "local t = ngx.thread.spawn(function() while true do coroutine.yield() end end) ngx.say(ngx.thread.kill(t))",
            "1",
        ),
        (
            "local s = require('ngx.semaphore').new(0)
             local t = ngx.thread.spawn(function() s:wait(3600) end)
             ngx.say(s:count(), ngx.thread.kill(t), s:count()) s:post() ngx.say(s:count())",
            "-110\n1",
        ),
        // Its connection is closed.
        (
            "local s = ngx.socket.tcp() s:connect('127.0.0.1', ngx.var.server_port)
             local t = ngx.thread.spawn(function() s:receive(100000) end)
             ngx.say(ngx.thread.kill(t)) ngx.say(s:receive(100000))",
            "1\nnilclosed",
        ),
        // What was waited for and given is given once.
        (
            "local s = require('ngx.semaphore').new(0)
             local t = ngx.thread.spawn(function() return (s:wait(3600)) end)
             s:post() ngx.say(ngx.thread.wait(t)) ngx.say(s:count(), s:wait(0))",
            "truetrue\n0niltimeout",
        ),
        (
            "local t = ngx.thread.spawn(function() return 1 end)
             ngx.say(ngx.thread.kill(t)) ngx.say(ngx.thread.wait(t))",
            "nilalready terminated\nnilalready waited or killed",
        ),
        // Others go on, and those who were not the parents do not kill.
        (
            "local a = ngx.thread.spawn(function() ngx.sleep(3600) end)
             local b = ngx.thread.spawn(function() local r, e = ngx.thread.kill(a) ngx.sleep(0.001) return e end)
             ngx.say(ngx.thread.wait(b)) ngx.say(ngx.thread.kill(a))",
            "truekiller not parent\n1",
        ),
        (
            "ngx.say(ngx.thread.kill(coroutine.create(function() end)))",
            "nilnot user thread",
        ),
    ]);
}

#[test]
fn a_server_quits_after_its_light_threads_were_killed() {
    let Some(server) = script(
        "ngx.thread.kill(ngx.thread.spawn(function()
             local s = ngx.socket.tcp() s:connect('127.0.0.1', ngx.var.server_port) s:receive() end))",
    ) else {
        return;
    };
    server.get("/").expect(200);
    server.stop();
}

#[test]
fn more_light_threads_than_may_run_at_a_time_run_one_after_the_other() {
    say(&[(
        "local n = 0 for _ = 1, 10500 do ngx.thread.wait(ngx.thread.spawn(function() n = n + 1 end)) end ngx.say(n)",
        "10500",
    )]);
}

#[test]
fn sockets_and_dictionaries_are_tables() {
    say(&[
        (
            "local s, u, d = ngx.socket.tcp(), ngx.socket.udp(), ngx.shared.shared
             s.mine, u.mine, d.mine = 1, 2, 3 ngx.say(type(s), type(u), type(d), s.mine, u.mine, d.mine)
             ngx.say(type(getmetatable(s).__index.receive), type(getmetatable(d).__index.get))",
            "tabletabletable123\nfunctionfunction",
        ),
        // A library's own method in the place of one.
        (
            "local s = ngx.socket.tcp() local old = s.settimeout
             s.settimeout = function(self, n) ngx.say('mine ', n) return old(self, n) end
             s:settimeout(1000) ngx.say(s:connect('127.0.0.1', ngx.var.server_port)) ngx.say(s:close())",
            "mine 1000\n1\n1",
        ),
        // A library's own table with the methods of a socket.
        (
            "local methods = {} for k, v in pairs(getmetatable(ngx.socket.tcp()).__index) do methods[k] = v end
             local mine = setmetatable({}, { __index = methods })
             ngx.say(mine:send('x')) ngx.say(mine:connect('127.0.0.1', ngx.var.server_port)) ngx.say(mine:close())",
            "nilclosed\n1\n1",
        ),
        (
            "local d = ngx.shared.shared ngx.say(pcall(d.get, {}, 'a')) ngx.say(d:set('k', 1), d:get('k'))",
            "falsebad \"zone\" argument\ntrue1",
        ),
        (
            "local d = ngx.shared.shared ngx.say(d:incr('i', 1, 5)) ngx.say(d:incr('i', 1)) ngx.say(d:incr('i', 1, 5))
             ngx.say(pcall(d.incr, d, 'j', 1, nil, 5)) ngx.say(d:add('n', nil)) ngx.say(d:set(true, 2), d:get('true'))",
            "6nilfalse\n7\n8nilfalse\nfalsemust provide \"init\" when providing \"init_ttl\"\n\
             falseattempt to add or replace nil valuesfalse\ntrue2",
        ),
        // A list that is full stays, and nothing makes room for it.
        (
            "local d, n = ngx.shared.shared, 0 d:set('kept', 1)
             while d:rpush('list', ('x'):rep(1000)) do n = n + 1 end
             local _, err = d:rpush('list', ('x'):rep(1000))
             ngx.say(err, n > 100, d:llen('list') == n, d:get('kept'), #d:lpop('list'))",
            "no memorytruetrue11000",
        ),
        (
            "local s = require('ngx.semaphore').new(1) s.mine = 2 ngx.say(type(s), s.mine, s:count())",
            "table21",
        ),
    ]);
}

#[test]
fn names_of_variables_are_the_same_in_any_case() {
    say(&[
        (
            "ngx.say(ngx.var.ARG_x, ngx.var.Request_Method, ngx.var.MINE, ngx.var.mine)",
            "1GEToldold",
        ),
        ("ngx.var.MINE = 'new' ngx.say(ngx.var.mine)", "new"),
        (
            "ngx.var.Args = 'q=2' ngx.say(ngx.var.args, ngx.var.arg_q)",
            "q=22",
        ),
    ]);
}

#[test]
fn a_bad_template_is_told_and_not_raised() {
    say(&[
        (
            "for _, t in ipairs { '$x', '${1', 'a$', '${x}' } do ngx.say(ngx.re.sub('abc', 'b', t)) end",
            &["nilnilfailed to compile the replacement template"; 4].join("\n"),
        ),
        (
            "ngx.say(pcall(ngx.re.match, 'a', 'a', 'q'))
             local m = ngx.re.match('xy', '(?<n>x)(?<n>y)(?<z>z)?', 'D') ngx.say(m.n[1], m.n[2], #m.n, m.z)",
            if is_oracle() {
                "false/usr/share/lua/5.1/resty/core/regex.lua:624: unknown flag \"q\" (flags \"q\")\nxy2nil"
            } else {
                "falseunknown flag \"q\" (flags \"q\")\nxy2nil"
            },
        ),
        (
            "local m, err = ngx.re.match('x', '(abc') ngx.say(m, err:find('^pcre2?_compile%(%) failed: missing ') ~= nil)
             m, err = ngx.re.match('\\255', '.', 'u') ngx.say(m, err:find('^pcre_exec%(%) failed: %-%d+$') ~= nil)",
            "niltrue\nniltrue",
        ),
        (
            "ngx.say(ngx.re.gsub('abc', '(b)', '[$0$1${1}1$2]$$'))",
            "a[bbb1]$c1",
        ),
    ]);
}

#[test]
fn a_response_has_no_type_when_its_script_says_so() {
    let Some(server) = with(
        "location /none { content_by_lua_block { ngx.header.content_type = nil ngx.print('x') } }
         location /reset { content_by_lua_block { ngx.header.content_type = 'a/b' ngx.header.content_type = nil ngx.print('x') } }
         location /early { access_by_lua_block { ngx.header['Content-Type'] = nil } content_by_lua_block { ngx.print('x') } }
         location /usual { content_by_lua_block { ngx.print('x') } }
         location /empty { content_by_lua_block { ngx.header.content_type = '' ngx.print('x') } }",
    ) else {
        return;
    };
    for target in ["/none", "/reset", "/early", "/empty"] {
        let reply = server.get(target).expect(200);
        assert!(!reply.has("Content-Type"), "{target}: {reply:?}");
    }
    let usual = server.get("/usual").expect(200);
    assert_eq!(usual.field("Content-Type"), "text/plain");
}

#[test]
fn conditional_requests_are_judged_for_what_a_script_says() {
    let Some(server) = with(
        r#"location / { content_by_lua_block {
            ngx.header.etag = '"abc"' ngx.header.last_modified = ngx.http_time(1000000000)
            ngx.status = tonumber(ngx.var.arg_status) or 200
            ngx.print(("x"):rep(tonumber(ngx.var.arg_n) or 1)) } }
        location /flush { content_by_lua_block {
            ngx.header.etag = '"abc"' ngx.print("x") ngx.flush(true) ngx.print("y") } }"#,
    ) else {
        return;
    };
    for (target, line, status) in [
        ("/", "If-None-Match: \"abc\"", 304),
        ("/", "If-None-Match: *", 304),
        ("/", "If-None-Match: \"other\"", 200),
        ("/", "If-Match: \"other\"", 412),
        ("/", "If-Modified-Since: Sun, 09 Sep 2001 01:46:40 GMT", 304),
        (
            "/",
            "If-Unmodified-Since: Sun, 09 Sep 2001 01:46:39 GMT",
            412,
        ),
        ("/?n=100000", "If-None-Match: \"abc\"", 304),
        ("/?status=201", "If-None-Match: \"abc\"", 201),
        ("/flush", "If-None-Match: \"abc\"", 304),
    ] {
        let reply = server.get_with(target, &[line]);
        assert_eq!(reply.status, status, "{target} {line}");
        if status == 304 {
            assert_eq!((reply.field("ETag"), &*reply.text()), ("\"abc\"", ""));
        }
    }
}

#[test]
fn what_a_script_makes_the_path_is_escaped_on_its_way_and_splits_no_request() {
    let Some(server) = with(
        r##"location /echo { return 200 "$request_uri"; }
        location /jump { rewrite_by_lua_block { ngx.req.set_uri("/my file", true) } }
        location "/my file" { proxy_pass http://127.0.0.1:%%PORT%%; rewrite_by_lua_block { ngx.req.set_uri("/echo/my file") } }
        location /plain { rewrite_by_lua_block { ngx.req.set_uri("/echo/a b%20?#\"") } proxy_pass http://127.0.0.1:%%PORT%%; }
        location /prefix { rewrite_by_lua_block { ngx.req.set_uri("/echo/a b") } proxy_pass http://127.0.0.1:%%PORT%%/other/; }
        location /bytes { rewrite_by_lua_block { ngx.req.set_uri("/echo/a\r\nX: y\127", false, true) } proxy_pass http://127.0.0.1:%%PORT%%; }
        location /refused { content_by_lua_block { ngx.print(pcall(ngx.req.set_uri, "/a\r\nb")) } }
        location /args { rewrite_by_lua_block { ngx.req.set_uri("/echo") ngx.req.set_uri_args("a=b c\r\nX: y&d=%20") } proxy_pass http://127.0.0.1:%%PORT%%; }
        location /kinds { content_by_lua_block { ngx.print(pcall(ngx.req.set_uri_args, nil)) } }"##,
    ) else {
        return;
    };
    for (target, text) in [
        ("/jump?x=1", "/echo/my%20file?x=1"),
        ("/plain", "/echo/a%20b%2520%3F%23%22"),
        ("/prefix", "/echo/a%20b"),
        ("/bytes", "/echo/a%0D%0AX:%20y%7F"),
        ("/args", "/echo?a=b%20c%0D%0AX:%20y&d=%20"),
    ] {
        assert_eq!(server.get(target).expect(200).text(), text, "{target}");
    }
    let refused = server.get("/refused").expect(200).text();
    assert!(
        refused.starts_with("false") && refused.contains("unsafe byte \"0x0d\""),
        "{refused}"
    );
    let kinds = server.get("/kinds").expect(200).text();
    assert!(
        kinds.contains("string, number, or table expected"),
        "{kinds}"
    );
}

#[test]
fn arguments_that_a_script_adds_split_no_request() {
    if skip_on_oracle("nginx sends them as they are, and so sends two requests") {
        return;
    }
    let Some(server) = with(
        r#"location /echo { return 200 "$request_uri"; }
        location /pass { rewrite ^ /echo break; proxy_pass http://127.0.0.1:%%PORT%%; }
        location /exec { content_by_lua_block { ngx.exec("/pass", "a\r\nX: y") } }
        location /capture { content_by_lua_block { ngx.print(ngx.location.capture("/pass", { args = "a\r\nX: y" }).body) } }"#,
    ) else {
        return;
    };
    for target in ["/exec", "/capture"] {
        let text = server.get(target).expect(200).text();
        assert_eq!(text, "/echo?a%0D%0AX:%20y", "{target}");
    }
}

#[test]
fn scripts_that_are_not_postponed_run_before_the_rest_of_their_phase() {
    let locations = r#"location /rewrite { set $x conf; rewrite_by_lua_block { ngx.var.x = "lua" } return 200 "$x"; }
        location /access { deny all; access_by_lua_block { ngx.header.x_ran = "yes" } return 200 x; }
        location /exit { deny all; access_by_lua_block { ngx.exit(418) } content_by_lua_block { ngx.print("x") } }"#;
    let Some(late) = site("", locations) else {
        return;
    };
    let late = late.start();
    // `return` ends the phase before a script that runs at its end.
    assert_eq!(late.get("/rewrite").expect(200).text(), "conf");
    late.get("/exit").expect(403);
    let outer = "rewrite_by_lua_no_postpone on; access_by_lua_no_postpone on;";
    let locations = locations
        .replace("set $x conf;", "set $y \"$x conf\";")
        .replace("\"$x\"", "\"$y\"");
    let locations = locations.replace(
        "location /rewrite {",
        "location /before { set $x before; } location /rewrite {",
    );
    let early = site(outer, &locations).expect("as before").start();
    assert_eq!(early.get("/rewrite").expect(200).text(), "lua conf");
    early.get("/exit").expect(418);
}

#[test]
fn scripts_run_before_the_content() {
    if skip_on_oracle("Debian's module is older than precontent_by_lua") {
        return;
    }
    let locations = r#"location /late { try_files /x /found; precontent_by_lua_block { ngx.exit(418) } }
        location /found { precontent_by_lua_block { ngx.header.x_phase = ngx.get_phase() } return 200 x; }
        location /phase { precontent_by_lua_block { ngx.header.x_phase = ngx.get_phase() } content_by_lua_block { ngx.print("x") } }"#;
    let late = site("", locations).expect("it has Lua").start();
    late.get("/late").expect(200);
    assert_eq!(
        late.get("/phase").expect(200).field("X-Phase"),
        "precontent"
    );
    let early = site("precontent_by_lua_no_postpone on;", locations);
    early.expect("it has Lua").start().get("/late").expect(418);
}

#[test]
fn libraries_of_luajit_are_there() {
    say(&[
        (
            "for _, n in ipairs { 'v', 'dump', 'bc', 'vmdef', 'p', 'zone', 'util', 'opt' } do
                 local ok, what = pcall(require, 'jit.' .. n) if not ok then ngx.say(what) end end",
            "",
        ),
        (
            "local out = {} require('jit.bc').dump(function() return 1 end,
                 { write = function(_, ...) out[#out + 1] = table.concat { ... } end, flush = function() end, close = function() end })
             ngx.say((table.concat(out):find('RET1', 1, true)) ~= nil)",
            "true",
        ),
    ]);
}

const SUMS: &str = r#"local hex = require("resty.string").to_hex
    for _, name in ipairs { "md5", "sha1", "sha224", "sha256", "sha384", "sha512" } do
        local sum = require("resty." .. name):new()
        assert(sum:update("a")) assert(sum:update("bcd", 2))
        ngx.say(hex(sum:final()):sub(1, 16))
        assert(sum:reset()) sum:update("abc") ngx.say(hex(sum:final()):sub(-8))
    end"#;

#[test]
fn digests_of_lua_resty_string_work() {
    if skip_on_oracle("Debian has no lua-resty-string") {
        return;
    }
    // The examples of RFC 1321 (appendix A.5) and of FIPS 180.
    say(&[(
        SUMS,
        "900150983cd24fb0\n28e17f72\na9993e364706816a\n9cd0d89d\n23097d223405d822\ne36c9da7\n\
         ba7816bf8f01cfea\nf20015ad\ncb00753f45a35e8b\n34c825a7\nddaf35a193617aba\na54ca49f",
    )]);
}

#[test]
fn ciphers_of_lua_resty_string_work() {
    if skip_on_oracle("Debian has no lua-resty-string") {
        return;
    }
    let hex = r#"local aes, hex = require "resty.aes", require("resty.string").to_hex
        local function bytes(t) return (t:gsub("%s", ""):gsub("%x%x", function(h) return string.char(tonumber(h, 16)) end)) end
        local key, iv = bytes "2b7e151628aed2a6abf7158809cf4f3c", bytes "000102030405060708090a0b0c0d0e0f"
        local text = bytes "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        local function run(mode, vector, t)
            local c = assert(aes:new(key, nil, aes.cipher(128, mode), { iv = vector or iv }, nil, nil, false))
            local sealed = assert(c:encrypt(t or text))
            assert(c:decrypt(sealed) == (t or text))
            return hex(sealed)
        end "#;
    let code = |code: &str| format!("{hex} {code}");
    say(&[
        // NIST SP 800-38A, appendix F: the first two blocks, for feedback by bits and bytes the first ones.
        (
            &code(
                "ngx.say(run('ecb')) ngx.say(run('cbc')) ngx.say(run('cfb128')) ngx.say(run('ofb'))",
            ),
            "3ad77bb40d7a3660a89ecaf32466ef97f5d3d58503b9699de785895a96fdbaaf\n\
             7649abac8119b246cee98e9b12e9197d5086cb9b507219ee95db113a917678b2\n\
             3b3fd92eb72dad20333449f8e83cfb4ac8a64537a0b3a93fcde3cdad9f1ce58b\n\
             3b3fd92eb72dad20333449f8e83cfb4a7789508d16918f03f53c52dac54ed825",
        ),
        (
            &code(
                "ngx.say(run('ctr', bytes 'f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff')) ngx.say(run('cfb8', iv, text:sub(1, 18))) ngx.say(run('cfb1', iv, text:sub(1, 2)))",
            ),
            "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff\n\
             3b79424c9c0dd436bace9e0ed4586a4f32b9\n68b3",
        ),
        // Test cases 4 and 5 of the proposal of GCM: a vector of 12 bytes, and a shorter one.
        (
            &code(
                r#"local k = bytes "feffe9928665731c6d6a8f9467308308"
                local p = bytes "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
                local c = aes:new(k, nil, aes.cipher(128, "gcm"), { iv = bytes "cafebabefacedbaddecaf888" })
                local a = bytes "feedfacedeadbeeffeedfacedeadbeefabaddad2"
                local sealed = c:encrypt(p, a) ngx.say(hex(sealed[1]):sub(1, 32), " ", hex(sealed[2]))
                local other = aes:new(k, nil, aes.cipher(128, "gcm"), { iv = bytes "cafebabefacedbad" }):encrypt(p, a)
                ngx.say(hex(other[1]):sub(1, 32), " ", hex(other[2]))
                ngx.say(c:decrypt(sealed[1], sealed[2], a) == p) ngx.say(c:decrypt(sealed[1], sealed[2]))
                ngx.say(c:decrypt(sealed[1]))"#,
            ),
            "42831ec2217774244b7221b784d0d49c 5bc94fbc3221a5db94fae95ae7121a47\n\
             61353b4c2806934a777ff51fa22a4755 3612d2e79e3b0785561be14aaca2fccb\ntrue\n\
             nilEVP_DecryptFinal_ex failed\nnilEVP_DecryptFinal_ex failed",
        ),
        // A password, as `openssl enc -md md5 -nosalt` makes a key of it.
        (
            &code(
                r#"local c = aes:new("AKeyForAES") local sealed = c:encrypt("Secret message!")
                ngx.say(hex(sealed)) ngx.say(c:decrypt(sealed)) ngx.say(c:decrypt("short"))
                local d = aes:new("AKeyForAES-256-CBC", "MySalt!!", aes.cipher(256, "cbc"), aes.hash.sha512, 5)
                ngx.say(hex(d:encrypt("Really secret message!"))) ngx.say(aes:new("x", "salt"))"#,
            ),
            "6d87d6b11c6bf0dcb76d1aa611520b3c\nSecret message!\nnilEVP_DecryptFinal_ex failed\n\
             02997c9c6eb26af1a335ed8c11d53df3bf127086ecbba02fb73391bcf385bd2c\nnilsalt must be 8 characters or nil",
        ),
        (
            &code(
                r#"ngx.say(aes:new("short", nil, nil, { iv = iv })) ngx.say(aes:new(key, nil, nil, {}))
                ngx.say(aes.cipher(100)) ngx.say(#require("resty.random").bytes(20), pcall(require("resty.random").bytes, -1) == false)"#,
            ),
            "nilbad key length\nniliv is needed\nnil\n20true",
        ),
    ]);
}

#[test]
fn code_that_is_no_lua_fails_those_who_ask_for_it() {
    let Some(site) = site(
        "init_worker_by_lua_block { this is no Lua }",
        "location = /fine { return 200 fine; }
         location = /content { content_by_lua_block { ngx.say('a' } }
         location = /access { access_by_lua_block { if } return 200 text; }
         location = /filter { header_filter_by_lua_block { then } return 200 text; }
         location = /file { content_by_lua_file broken.lua; }",
    ) else {
        return;
    };
    let server = site
        .file("broken.lua", "ngx.say(\n'x'")
        .tolerate("init_worker")
        .start();
    server.answers(&[
        ("/fine", 200, "fine"),
        ("/content", 500, ""),
        ("/file", 500, ""),
    ]);
    // `return` stands before the access phase: the script is not asked for.
    server.answers(&[("/access", 200, "text")]);
    assert!(
        server
            .raw_or_closed("GET /filter HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .is_none()
    );
    server.line("error.log", "expected near");
}

#[test]
fn a_header_filter_that_fails_ends_the_connection_and_a_subrequest_fails() {
    let Some(server) = with(
        "location = /bad { header_filter_by_lua_block { error('oops') } return 200 text; }
         location = /asks { content_by_lua_block { ngx.print(ngx.location.capture('/bad').status) } }",
    ) else {
        return;
    };
    let asked = "GET /bad HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(server.raw_or_closed(asked).is_none());
    if !is_oracle() {
        // nginx says 200, of a response that there is not.
        server.answers(&[("/asks", 200, "500")]);
    }
}

#[test]
fn the_socket_of_a_subrequest_that_has_ended_is_nobody_elses() {
    let Some(site) = site(
        "init_by_lua_block { kept = {} }",
        "location = /peer { return 200 peer; }
         location = /makes { content_by_lua_block {
             kept.socket = ngx.socket.tcp()
             ngx.print(kept.socket:connect('127.0.0.1', %%PORT%%)) } }
         location = /takes { content_by_lua_block { 
             local socket, call = kept.socket, ngx.var.arg_call
             if call == 'connect' then ngx.print(socket:connect('127.0.0.1', %%PORT%%))
             elseif call == 'send' then ngx.print(socket:send('x'))
             else ngx.print(socket[call](socket)) end } }
         location = /asks { content_by_lua_block {
             ngx.print(ngx.location.capture('/makes').body)
             for _, call in ipairs { 'send', 'receive', 'close', 'setkeepalive', 'connect' } do
                 ngx.print(' ', ngx.location.capture('/takes?call=' .. call).status)
             end } }",
    ) else {
        return;
    };
    let server = site.start();
    server.answers(&[("/asks", 200, "1 500 500 500 500 500")]);
}

#[test]
fn variables_of_subrequests_are_texts_and_spaces_stay_in_arguments() {
    let Some(server) = with(
        "location = /vars { set $dog ''; content_by_lua_block {
             ngx.print(ngx.location.capture('/other', { vars = { dog = true } }).body) } }
         location = /numbers { set $dog ''; content_by_lua_block {
             ngx.print(ngx.location.capture('/dog', { vars = { dog = 7 } }).body) } }
         location = /dog { content_by_lua_block { ngx.print(ngx.var.dog) } }
         location = /exec { content_by_lua_block { ngx.exec('/args', 'a b') } }
         location = /args { content_by_lua_block { ngx.print(ngx.var.args) } }
         location = /other { return 200 other; }",
    ) else {
        return;
    };
    server.answers(&[
        ("/vars", 500, ""),
        ("/numbers", 200, "7"),
        ("/exec", 200, "a b"),
    ]);
}

#[test]
fn content_from_a_file_has_its_name_and_is_not_in_memory() {
    let Some(site) = site(
        "",
        "location = /named { content_by_lua_block {
             ngx.req.read_body()
             ngx.req.set_body_file('%%DIR%%/content')
             ngx.say(tostring(ngx.req.get_body_data()), ' ', (ngx.req.get_body_file():gsub('.*/', '')))
             ngx.req.set_body_data('other')
             ngx.say(tostring(ngx.req.get_body_data()), ' ', tostring(ngx.req.get_body_file()))
         } }
         location = /passed { rewrite_by_lua_block {
             ngx.req.read_body()
             ngx.req.set_body_file('%%DIR%%/content')
         } proxy_pass http://127.0.0.1:%%PORT%%/echo; }
         location = /echo { content_by_lua_block { ngx.req.read_body() ngx.print(ngx.req.get_body_data()) } }",
    ) else {
        return;
    };
    let server = site.file("content", "text of a file").start();
    let posted = |target: &str| {
        let head = "HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3";
        server
            .raw(format!("POST {target} {head}\r\n\r\nold"))
            .text()
    };
    assert_eq!(posted("/named"), "nil content\nother nil\n");
    assert_eq!(posted("/passed"), "text of a file");
}

#[test]
fn a_light_thread_that_waits_for_a_subrequest_is_not_ended() {
    let Some(server) = with(
        "location = /slow { content_by_lua_block { ngx.sleep(0.05) ngx.print('slow') } }
         location = /asks { content_by_lua_block {
             local function asks() ngx.location.capture('/slow') end
             local waits = ngx.thread.spawn(asks)
             local sleeps = ngx.thread.spawn(function() ngx.sleep(60) end)
             ngx.say(select(2, ngx.thread.kill(waits)))
             ngx.say(ngx.thread.kill(sleeps))
             ngx.say(ngx.thread.wait(waits))
         } }",
    ) else {
        return;
    };
    server.answers(&[("/asks", 200, "pending subrequests\n1\ntrue\n")]);
}

#[test]
fn a_script_may_leave_out_the_conditions_of_a_client() {
    if skip_on_oracle("Debian's lua-resty-core is older than that") {
        return;
    }
    let Some(server) = with(
        "location = /judged { content_by_lua_block { ngx.print('text') } }
         location = /sent { access_by_lua_block { require('ngx.resp').bypass_if_checks() }
             content_by_lua_block { ngx.print('text') } }",
    ) else {
        return;
    };
    let asked = |target: &str| server.get_with(target, &["If-Match: \"1\""]).status;
    assert_eq!((asked("/judged"), asked("/sent")), (412, 200));
}

#[test]
fn wrong_arguments_are_named_in_the_order_in_which_lua_nginx_module_checks_them() {
    let said = |code: &str| {
        format!(
            "local function show(f, ...) ngx.say((tostring(select(2, pcall(f, ...))):gsub('^.-:%d+: ', ''))) end {code}"
        )
    };
    let rows = [
        (
            "show(ngx.timer.at, 1)",
            "expecting at least 2 arguments but got 1",
        ),
        (
            "show(ngx.exec)",
            "expecting one or two arguments, but got 0",
        ),
        (
            "show(ngx.exec, '/a', 'b', 'c')",
            "expecting one or two arguments, but got 3",
        ),
        (
            "show(ngx.location.capture)",
            "expecting one or two arguments",
        ),
        (
            "show(ngx.flush, true, 1)",
            "attempt to pass 2 arguments, but accepted 0 or 1",
        ),
        (
            "show(function() ngx.flush('x') end)",
            "bad argument #1 to 'flush' (boolean expected, got string)",
        ),
        (
            "local d = ngx.shared.shared show(d.flush_expired, d, 1, 2)",
            "expecting 1 or 2 argument(s), but saw 3",
        ),
        (
            "local d = ngx.shared.shared show(d.get_keys, d, 1, 2)",
            "expecting 1 or 2 argument(s), but saw 3",
        ),
        (
            "show(ngx.req.set_header, 'Content-Length', 'x')",
            "failed to set header",
        ),
        (
            "show(coroutine.wrap, 1)",
            "bad argument #1 to '?' (Lua function expected)",
        ),
        (
            "show(ngx.timer.at, 1, 'x')",
            "bad argument #2 to '?' (Lua function expected)",
        ),
        (
            "show(ngx.location.capture, nil)",
            "query argument 0 expecting one or two arguments",
        ),
        (
            "show(ngx.location.capture, '/', 'x')",
            "expecting table as the 2nd argument for subrequest 0, but got string",
        ),
        (
            "show(function() ngx.header['Content-Length'] = 'x' end)",
            "failed to set header",
        ),
        ("ngx.say(ngx.location.capture(15).status)", "404"),
        (
            "ngx.say(select(2, ngx.on_abort()))",
            "lua_check_client_abort is off",
        ),
        ("ngx.say(select('#', ngx.req.get_headers()))", "1"),
        (
            "ngx.say(type(ngx.location.capture('/other').header['Content-Length']))",
            "number",
        ),
        (
            "ngx.say(ngx.get_raw_phase(require('resty.core.base').get_request()))",
            "8",
        ),
    ];
    let codes: Vec<(String, &str)> = rows
        .iter()
        .map(|(code, text)| (said(code), *text))
        .collect();
    let codes: Vec<(&str, &str)> = codes
        .iter()
        .map(|(code, text)| (code.as_str(), *text))
        .collect();
    say_beside("location = /other { return 200 other; }", &codes);
}

#[test]
fn a_number_that_is_no_status_is_a_500() {
    if skip_on_oracle("nginx sends a status line that no client can read") {
        return;
    }
    let Some(server) = with(
        "location / { content_by_lua_block {
            ngx.status = assert(load('return ' .. ngx.var.arg_status))()
            ngx.print('status ', ngx.status) } }",
    ) else {
        return;
    };
    for status in ["1000", "65535", "1e12", "-1", "0/0", "1/0"] {
        let reply = server.get(&format!("/?status={status}")).expect(500);
        assert_eq!(reply.text(), "status 500", "{status}");
    }
    server.get("/?status=999").expect(999);
    assert!(server.read("error.log").contains("65535 is not a status"));
}
