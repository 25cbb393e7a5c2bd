//! Lua: which script runs when, and how each may end its phase.

use weir_tests::{Server, skip_on_oracle};

use super::lua::lua;

/// A server with this in its block.
fn with(server: &str) -> Option<Server> {
    let block = format!(
        "default_type text/plain;
        lua_shared_dict shared 1m;
        server {{ listen 127.0.0.1:%%PORT%%; server_name localhost;
            {server}
        }}"
    );
    Some(lua(&block)?.start())
}

#[test]
fn scripts_of_the_server_run_before_its_rewrites_and_before_the_location_is_chosen() {
    let Some(server) = with(
        "set $trace $trace-set;
        rewrite ^/old$ /new;
        server_rewrite_by_lua_block {
            ngx.ctx.trace = (ngx.ctx.trace or '') .. ngx.get_phase() .. ':' .. ngx.var.uri
            if ngx.var.arg_to then ngx.req.set_uri('/' .. ngx.var.arg_to, ngx.var.arg_jump == '1') end
            if ngx.var.arg_status then return ngx.exit(tonumber(ngx.var.arg_status)) end
            if ngx.var.arg_fail then error('stop') end
            if ngx.var.arg_wait then ngx.sleep(0.001) end
        }
        location / { content_by_lua_block { ngx.say(ngx.var.uri, ' ', ngx.ctx.trace) } }
        location /chosen { content_by_lua_block { ngx.say('chosen ', ngx.ctx.trace) } }
        location /jumps { rewrite_by_lua_block {
            ngx.ctx.trace = 'lost'
            ngx.req.set_uri('/chosen', true)
        } }
        location /sub { content_by_lua_block {
            ngx.print(ngx.location.capture('/old').body, ngx.ctx.trace)
        } }",
    ) else {
        return;
    };
    let said = |target: &str| server.get(target).expect(200).text();
    assert_eq!(said("/old"), "/new server_rewrite:/old\n");
    assert_eq!(said("/x?wait=1"), "/x server_rewrite:/x\n");
    assert_eq!(said("/x?to=chosen"), "chosen server_rewrite:/x\n");
    // A jump is a new beginning, as an internal redirect is.
    assert_eq!(said("/x?to=chosen&jump=1"), "chosen nil\n");
    assert_eq!(said("/jumps"), "chosen nil\n");
    // A subrequest has rewrites of its own, and a context of its own.
    assert_eq!(
        said("/sub"),
        "/new server_rewrite:/old\nserver_rewrite:/sub"
    );
    server.get("/x?status=403").expect(403);
    // Through: nothing is refused.
    assert_eq!(said("/x?status=0"), "/x server_rewrite:/x\n");
    server.get("/x?fail=1").expect(500);
}

/// `ngx.ERROR` is nginx's code for what cannot go on: nobody is answered.
#[test]
fn an_exit_with_the_code_of_errors_ends_the_connection_without_an_answer() {
    let Some(server) = with(
        "location /content { content_by_lua_block { ngx.exit(ngx.ERROR) } }
        location /said { content_by_lua_block { ngx.say('hi') ngx.exit(ngx.ERROR) } }
        location /access { access_by_lua_block { ngx.exit(ngx.ERROR) } content_by_lua_block { ngx.say('hi') } }
        location /fails { content_by_lua_block { ngx.say('hi') error('x') } }
        location /none { content_by_lua_block { ngx.say('hi') ngx.exit(444) } }
        location /filter { header_filter_by_lua_block { ngx.exit(ngx.ERROR) } return 200 hi; }
        location /body { body_filter_by_lua_block { return ngx.ERROR } return 200 hi; }
        location /rewrite { rewrite_by_lua_block { ngx.exit(ngx.ERROR) } }
        location /declined {
            access_by_lua_block { ngx.exit(ngx.DECLINED) }
            content_by_lua_block { ngx.say('served') }
        }
        location /sub { content_by_lua_block {
            local r = ngx.location.capture('/content')
            ngx.say(r.status, ' ', #r.body, ' ', tostring(r.truncated))
        } }",
    ) else {
        return;
    };
    for target in [
        "/content", "/said", "/access", "/rewrite", "/fails", "/none", "/filter",
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(server.raw_or_closed(head).is_none(), "{target}");
    }
    // What a body filter refuses may have a head by then, but no content.
    let reply = server.raw_or_closed("GET /body HTTP/1.0\r\nHost: localhost\r\n\r\n");
    assert!(reply.is_none_or(|reply| reply.text().is_empty()));
    assert_eq!(server.get("/declined").expect(200).text(), "served\n");
    assert_eq!(server.get("/sub").expect(200).text(), "500 0 true\n");
}

/// The page of a status passes the header filter that has asked for it, which asks once more, and in vain.
#[test]
fn a_header_filter_that_exits_again_on_its_own_page_changes_nothing() {
    let Some(server) = with(
        "header_filter_by_lua_block {
            ngx.ctx.runs = (ngx.ctx.runs or 0) + 1
            ngx.header['X-Runs'] = ngx.ctx.runs
            local asked = ngx.var.request_uri
            if asked ~= '/other' then ngx.exit(403) elseif ngx.ctx.runs < 3 then ngx.exit(402 + ngx.ctx.runs) end
        }
        location /plain { return 200 hi; }
        location /file { }
        location /paged { error_page 403 /page; return 200 hi; }
        location /page { return 200 page; }
        location /named { error_page 403 @page; return 200 hi; }
        location @page { return 200 page; }
        location /other { return 200 hi; }
        location /access { access_by_lua_block { ngx.exit(403) } content_by_lua_block { ngx.say('hi') } }
        location /content { content_by_lua_block { ngx.exit(403) } }",
    ) else {
        return;
    };
    for (target, status, runs) in [
        ("/plain", 403, "2"),
        ("/file", 403, "2"),
        // An internal redirect forgets what was asked for.
        ("/paged", 403, "2"),
        ("/named", 403, "2"),
        ("/other", 404, "3"),
        ("/access", 403, "1"),
        ("/content", 403, "1"),
    ] {
        let reply = server.get(target);
        let seen = (reply.status, reply.field("X-Runs"));
        assert_eq!(seen, (status, runs), "{target}");
    }
}

/// Who captures a response gets the status of a failure, and no page that explains it to people.
#[test]
fn captured_failures_have_a_status_and_no_page() {
    let Some(server) = with(
        "error_page 402 /page;
        location = /page { return 200 page; }
        location /r404 { return 404; }
        location /text { return 403 text; }
        location /r301 { return 301 /x; }
        location /r402 { return 402; }
        location /exit { content_by_lua_block { ngx.exit(500) } }
        location /own { content_by_lua_block { ngx.status = 404 ngx.print('own') ngx.exit(404) } }
        location /status { content_by_lua_block { ngx.status = 404 } }
        location /fails { content_by_lua_block { error('x') } }
        location /absent { root /nonexistent; }
        location /all { content_by_lua_block {
            for _, to in ipairs { 'r404', 'text', 'r301', 'r402', 'exit', 'own', 'status', 'fails', 'absent' } do
                local r = ngx.location.capture('/' .. to)
                ngx.say(to, ' ', r.status, ' [', r.body, '] ', tostring(r.truncated), ' ', r.header['Content-Type'])
            end
            local r = ngx.location.capture('/text', { method = ngx.HTTP_HEAD })
            ngx.say(r.status, ' [', r.body, '] ', tostring(r.truncated), ' ', r.header['Content-Length'])
        } }",
    ) else {
        return;
    };
    assert_eq!(
        server.get("/all").expect(200).text(),
        "r404 404 [] true text/plain
text 403 [text] false text/plain
r301 301 [] true text/plain
r402 402 [] true text/plain
exit 500 [] true text/plain
own 404 [own] false text/plain
status 404 [] false text/plain
fails 500 [] true text/plain
absent 404 [] true text/plain
403 [] true 4
"
    );
}

#[test]
fn a_light_thread_that_resumed_what_waits_is_normal_and_tells_what_it_failed_with() {
    let Some(server) = with(
        r#"location / { content_by_lua_block {
            local co
            local t = ngx.thread.spawn(function()
                co = coroutine.running()
                coroutine.resume(coroutine.create(function() ngx.sleep(0.01) end))
            end)
            ngx.say(coroutine.status(co))
            ngx.thread.wait(t)
            ngx.say(coroutine.status(co))
            local function list(...)
                local t = {}
                for i = 1, select('#', ...) do t[i] = tostring((select(i, ...))) end
                return (table.concat(t, ' | '):gsub('%(.-%):%d+', '(*)'))
            end
            ngx.say(list(ngx.thread.wait(ngx.thread.spawn(function() error('one') end))))
            ngx.say(list(ngx.thread.wait(ngx.thread.spawn(function() ngx.sleep(0) error('two', 0) end))))
            ngx.say(tostring(ngx.var[0]), tostring(ngx.var[-1]))
        } }"#,
    ) else {
        return;
    };
    assert_eq!(
        server.get("/").expect(200).text(),
        "normal
dead
false | one | content_by_lua(*): one
false | two
nilnil
"
    );
    server.line("error.log", "lua user thread aborted: runtime error");
    server.line("error.log", "coroutine 0:");
}

#[test]
fn threads_of_pools_share_the_dictionaries_and_say_what_they_cannot_take() {
    if skip_on_oracle("Debian's module is older") {
        return;
    }
    let Some(site) = lua(
        r#"lua_package_path "%%DIR%%/?.lua;;"; lua_shared_dict shared 1m;
        lua_worker_thread_vm_pool_size 1;
        server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block {
            local function call(...) ngx.say(ngx.run_worker_thread("workers", "work", ...)) end
            local itself = {}
            itself.itself = itself
            ngx.shared.shared:set("n", 7)
            call("add", 1)
            ngx.say(ngx.shared.shared:get("n"))
            call("add", print)
            call("add", itself)
            call("give")
            call("nothing")
            call({}, 1)
            ngx.say(ngx.run_worker_thread("workers", "work"))
            ngx.say(ngx.run_worker_thread("workers", {}, "add"))
            ngx.say(ngx.run_worker_thread({}, "work", "add"))
            local t = ngx.thread.spawn(call, "slow")
            call("add", 1)
            ngx.thread.wait(t)
        } } }"#,
    ) else {
        return;
    };
    let server = site
        .main("thread_pool workers threads=4;\n")
        .file(
            "work.lua",
            "local work = {}
            function work.add(n) return ngx.shared.shared:incr('n', n) end
            function work.give() return { print } end
            function work.slow() os.execute('sleep 0.2') return 0 end
            return work",
        )
        .start();
    assert_eq!(
        server.get("/").expect(200).text(),
        "true8
8
falseunsupported Lua type: LUA_TFUNCTION in the argument
falsesuspicious circular references, table depth exceed max depth: 100 in the argument
falseunsupported Lua type: LUA_TFUNCTION in the return value
falseinvalid function
falsefunction name should be a string
falseexpecting at least 3 arguments
falsemodule name should be a string
falsethreadpool should be a string
falseno available Lua vm
true0
"
    );
}

/// A client of HTTP/1.0 knows of no chunks: it gets the whole, with its length.
#[test]
fn responses_to_http_1_0_are_gathered_unless_that_is_off() {
    let Some(server) = with(
        "location /on { content_by_lua_block {
            ngx.say(tostring(select(2, ngx.flush(true))))
            ngx.say(tostring(select(2, ngx.flush(true))))
            ngx.sleep(0.001)
            ngx.print(string.rep('x', 100000))
        } }
        location /off { lua_http10_buffering off; content_by_lua_block {
            ngx.say('one')
            ngx.say(tostring(ngx.flush(true)))
        } }
",
    ) else {
        return;
    };
    let get =
        |target: &str| server.raw(format!("GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n"));
    let reply = get("/on").expect(200);
    assert_eq!(reply.field("Content-Length"), "100027");
    assert!(reply.text().starts_with("nothing to flush\nbuffering\nxxx"));
    let reply = get("/off").expect(200);
    assert!(!reply.has("Content-Length"));
    assert_eq!(reply.text(), "one\n1\n");
}

/// Newer than Debian's module.
#[test]
fn captured_requests_may_have_fields_of_their_own() {
    if skip_on_oracle("Debian's module is older") {
        return;
    }
    let Some(server) = with(
        "location /sub { content_by_lua_block { ngx.print(ngx.var.http_x_test) } }
        location / { content_by_lua_block {
            ngx.print(ngx.location.capture('/sub', { headers = { ['X-Test'] = 'own' } }).body)
            ngx.print(ngx.location.capture('/sub').body)
            ngx.print(tostring((pcall(ngx.location.capture, '/sub', { headers = 1 }))))
        } }",
    ) else {
        return;
    };
    let reply = server.raw("GET / HTTP/1.0\r\nHost: localhost\r\nX-Test: client\r\n\r\n");
    assert_eq!(reply.expect(200).text(), "ownclientfalse");
}

#[test]
fn a_script_of_the_rewrite_phase_does_not_run_where_a_rewrite_has_chosen_another_location() {
    let Some(server) = with(
        "location /main {
            rewrite ^/main/last$ /other last;
            rewrite ^/main/plain$ /other;
            rewrite ^/main/break$ /main/stays break;
            rewrite_by_lua_block { return ngx.exit(503) }
        }
        location /other { content_by_lua_block { ngx.say('other') } }",
    ) else {
        return;
    };
    for target in ["/main/last", "/main/plain"] {
        assert_eq!(server.get(target).expect(200).text(), "other\n", "{target}");
    }
    server.get("/main/break").expect(503);
    server.get("/main").expect(503);
}

#[test]
fn a_jump_takes_one_or_two_arguments_and_a_named_location_none() {
    let Some(server) = with(
        "location /many { content_by_lua_block { ngx.exec('/there', 'a', 'b') } }
        location /none { content_by_lua_block { ngx.exec() } }
        location /named { content_by_lua_block { ngx.exec('@there?a=1', 'b=2') } }
        location @there { content_by_lua_block { ngx.say('there ', ngx.var.args) } }",
    ) else {
        return;
    };
    server.get("/many").expect(500);
    server.get("/none").expect(500);
    assert_eq!(server.get("/named").expect(200).text(), "there nil\n");
}

#[test]
fn a_file_of_a_script_may_come_after_the_start() {
    let Some(server) = with(
        "location = /write { content_by_lua_block {
            local file = assert(io.open(ngx.config.prefix() .. 'late.lua', 'w'))
            file:write('ngx.say(\"late\")')
            file:close()
            ngx.say('written')
        } }
        location = /late { content_by_lua_file late.lua; }
        location = /never {
            access_by_lua_file never.lua;
            content_by_lua_block { ngx.say('never') }
        }
        location = /filter { header_filter_by_lua_file never.lua; content_by_lua_block { ngx.say('x') } }
        location = /log { log_by_lua_file never.lua; return 200 logged; }",
    ) else {
        return;
    };
    server.get("/late").expect(404);
    server.get("/never").expect(404);
    assert_eq!(server.get("/log").expect(200).text(), "logged");
    assert_eq!(server.get("/write").expect(200).text(), "written\n");
    assert_eq!(server.get("/late").expect(200).text(), "late\n");
}

#[test]
fn a_light_thread_cannot_end_a_request_that_waits_for_subrequests() {
    let Some(server) = with(
        "location = /wait { content_by_lua_block {
            local turns = package.loaded.turns
            turns.began:post()
            turns.tried:wait(30)
            ngx.say('waited')
        } }
        location = /elsewhere { return 200 elsewhere; }
        location / { content_by_lua_block {
            local ends = {
                exit = function() ngx.exit(403) end,
                exec = function() ngx.exec('/elsewhere') end,
                redirect = function() ngx.redirect('/elsewhere') end,
            }
            local new = require('ngx.semaphore').new
            local turns = { began = new(), tried = new() }
            package.loaded.turns = turns
            local why
            ngx.thread.spawn(function()
                turns.began:wait(30)
                why = select(2, pcall(ends[ngx.var.arg_by]))
                turns.tried:post()
            end)
            local one = ngx.location.capture('/wait')
            ngx.print(one.body, why)
        } }
        location = /after { content_by_lua_block {
            ngx.location.capture('/elsewhere')
            ngx.exit(403)
        } }",
    ) else {
        return;
    };
    for by in ["exit", "exec", "redirect"] {
        let said = server.get(&format!("/?by={by}")).expect(200).text();
        assert!(
            said.starts_with("waited\n")
                && said.ends_with("attempt to abort with pending subrequests"),
            "{by}: {said}"
        );
    }
    server.get("/after").expect(403);
}

#[test]
fn the_head_of_a_request_is_there_as_it_came() {
    let Some(server) = with(
        "location = /all { rewrite_by_lua_block { ngx.req.set_header('Foo', 'changed') }
            content_by_lua_block { ngx.print(ngx.req.raw_header()) } }
        location = /fields { content_by_lua_block { ngx.print(ngx.req.raw_header(true)) } }
        location = /sub { content_by_lua_block { ngx.print(ngx.location.capture('/all').body) } }",
    ) else {
        return;
    };
    let fields = "Host:  localhost\nfoo: 1\r\nodd_name: 2\r\nfoo: 3\nConnection: close\r\n\r\n";
    for (target, line) in [("/all", true), ("/sub", true), ("/fields", false)] {
        let head = format!("GET {target} HTTP/1.1\r\n{fields}");
        let reply = server.raw(&head);
        let wanted = if line { &*head } else { fields };
        assert_eq!(reply.expect(200).text(), wanted, "{target}");
    }
}

#[test]
fn one_process_alone_has_the_environment_that_the_configuration_gives() {
    let site = lua(
        "server { listen 127.0.0.1:%%PORT%%; server_name localhost;
            location / { content_by_lua_block { ngx.print(os.getenv('GREETING'), ' ', os.getenv('HOME')) } }
        }",
    );
    let Some(site) = site else { return };
    let server = site.main("master_process off; env GREETING=hello;").start();
    assert_eq!(server.get("/").expect(200).text(), "hello nil");
}

#[test]
fn without_a_cache_captured_requests_share_the_machine_of_their_parent() {
    let site = lua(
        "server { listen 127.0.0.1:%%PORT%%; server_name localhost; lua_code_cache off;
        location = /counts { content_by_lua_block { seen = (seen or 0) + 1 ngx.print(seen) } }
        location = /captures { content_by_lua_block {
            for _, shares in ipairs { true, false } do
                ngx.print(ngx.location.capture('/counts', { share_all_vars = shares }).body, ' ')
            end
        } } }",
    );
    let Some(site) = site else { return };
    let server = site.tolerate("lua_code_cache is off").start();
    for _ in 0..2 {
        assert_eq!(server.get("/captures").expect(200).text(), "1 2 ");
    }
}

/// A block of `if` is chosen in the midst of the phase: its script runs, also where the location outside has none.
#[test]
fn scripts_in_blocks_of_if_rewrite() {
    let Some(server) = with(
        "location / {
            set $seen none;
            if ($arg_a) { rewrite_by_lua_block { ngx.var.seen = 'inside' } }
            proxy_pass http://127.0.0.1:%%PORT%%/up?$seen;
        }
        location /both {
            set $seen none;
            rewrite_by_lua_block { ngx.var.seen = 'outside' }
            if ($arg_a) { rewrite_by_lua_block { ngx.var.seen = 'inside' } }
            proxy_pass http://127.0.0.1:%%PORT%%/up?$seen;
        }
        location /up { return 200 $args; }",
    ) else {
        return;
    };
    for (target, seen) in [
        ("/?a=1", "inside"),
        ("/", "none"),
        ("/both?a=1", "inside"),
        ("/both", "outside"),
    ] {
        assert_eq!(server.get(target).expect(200).text(), seen, "{target}");
    }
}

#[test]
fn a_page_of_a_script_keeps_the_status_of_another_scripts_exit() {
    let Some(site) = lua(
        "server { listen 127.0.0.1:%%PORT%%; error_page 404 403 = /page;
        location = /exits { content_by_lua_block { ngx.exit(404) } }
        location = /returns { return 403; }
        location = /page { content_by_lua_block { ngx.say('page') } }
        location = /static { error_page 404 = /file; content_by_lua_block { ngx.exit(404) } }
    }",
    ) else {
        return;
    };
    let server = site.file("html/file", "text").start();
    server.answers(&[
        ("/exits", 404, "page\n"),
        ("/returns", 200, "page\n"),
        ("/static", 200, "text"),
    ]);
}
