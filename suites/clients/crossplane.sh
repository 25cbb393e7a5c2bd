# crossplane reads what -T prints, and the files; what it formats is accepted again.
cat >/etc/nginx/sites-enabled/default <<'CONF'
map $host $name { default "a b"; ~^www\.(?<rest>.+)$ $rest; "x;y" 'q"q'; }
# a comment
server {
    listen 80; server_name a.test ~^(?<sub>\w+)\.b\.test$;
    location ~ "^/x{2}/(.*)$" { return 200 "text; with $1 {braces} \"quotes\""; }
    if ($http_user_agent ~* "(bot|spider)") { return 403; }
    location / { add_header X-A "it's" always; try_files $uri $uri/ =404; }
}
CONF
nginx -T >dump 2>dump.err; echo "nginx -T: $?"
cat dump.err
echo "files: $(grep -c '^# configuration file ' dump) $(grep '^# configuration file ' dump | md5sum | cut -c1-8), text: $(md5sum <dump | cut -c1-8)"
"$1" -m crossplane parse --combine --include-comments /etc/nginx/nginx.conf >parsed.json; echo "crossplane parse: $?"
python3 -c "
import json
tree = json.load(open('parsed.json')); print('status', tree['status'], len(tree['errors']), len(tree['config'][0]['parsed']))
json.dump(tree, open('tree.json', 'w'))"
# It writes the files to where they were.
"$1" -m crossplane build --force --no-headers tree.json >/dev/null; echo "crossplane build: $?"
nginx -t 2>&1
nginx
curl -s -H 'Host: a.test' http://127.0.0.1/xx/path; echo; curl -s -o /dev/null -w '%{http_code}\n' -A somebot -H 'Host: a.test' http://127.0.0.1/
"$1" -m crossplane minify /etc/nginx/nginx.conf >small.conf; nginx -t -c "$PWD/small.conf" 2>&1 | sed "s#$PWD#BOX#"
nginx -s quit 2>/dev/null
true
