# sites.sh: twenty sites of an ordinary machine in /etc/nginx, and the programs behind them. Run inside the fresh root.
#
# Four sites of WordPress (PHP-FPM, MariaDB), four of Django (gunicorn), six of files, four of a proxied application,
# two of stream.
set -eu
rm -f /etc/nginx/sites-enabled/*
site() { # NAME: the server's body comes by standard input
    { printf 'server {\n    listen 80;\n    server_name %s.test;\n    access_log /var/log/nginx/%s.log;\n' "$1" "$1"; cat; echo '}'; } \
        > "/etc/nginx/sites-available/$1"
    ln -sf "/etc/nginx/sites-available/$1" "/etc/nginx/sites-enabled/$1"
}

# Files: plain, an application of one page, a listing, compressed, downloads, a password.
for name in plain spa listing text downloads secret; do
    mkdir -p "/var/www/$name"
    echo "<h1>$name</h1>" > "/var/www/$name/index.html"
    seq 1 20000 > "/var/www/$name/list.txt"
done
echo "word:$(openssl passwd -apr1 word)" > /etc/nginx/words
site plain <<'END'
    root /var/www/plain;
END
site spa <<'END'
    root /var/www/spa;
    location / { try_files $uri $uri/ /index.html; }
    location ~* \.(css|js|png)$ { expires 30d; }
END
site listing <<'END'
    location / { alias /var/www/listing/; autoindex on; }
END
site text <<'END'
    root /var/www/text;
    gzip on;
    gzip_types text/plain;
END
site downloads <<'END'
    root /var/www/downloads;
    limit_rate 4m;
    sendfile_max_chunk 512k;
    add_header X-Content-Type-Options nosniff always;
END
site secret <<'END'
    root /var/www/secret;
    location / { auth_basic "secret"; auth_basic_user_file words; }
END

# WordPress, once, under four names: plain, cached, limited, and behind a redirect.
cp -rL /usr/share/wordpress /var/www/wordpress
cat > /var/www/wordpress/wp-config.php <<'END'
<?php
define('DB_NAME', 'site'); define('DB_USER', 'site'); define('DB_PASSWORD', 'word'); define('DB_HOST', 'localhost:/run/mysqld/mysqld.sock');
define('DB_CHARSET', 'utf8mb4'); define('DB_COLLATE', '');
foreach (['AUTH_KEY','SECURE_AUTH_KEY','LOGGED_IN_KEY','NONCE_KEY','AUTH_SALT','SECURE_AUTH_SALT','LOGGED_IN_SALT','NONCE_SALT'] as $name)
    define($name, str_repeat($name, 4));
define('WP_HOME', 'http://' . $_SERVER['HTTP_HOST']); define('WP_SITEURL', WP_HOME);
define('DISABLE_WP_CRON', true); define('WP_HTTP_BLOCK_EXTERNAL', true); define('WP_DEBUG', false); $table_prefix = 'wp_';
if (!defined('ABSPATH')) define('ABSPATH', __DIR__ . '/');
require_once ABSPATH . 'wp-settings.php';
END
echo 'fastcgi_cache_path /var/cache/nginx-php keys_zone=php:1m; limit_req_zone $binary_remote_addr zone=visits:1m rate=1000r/s;' \
    > /etc/nginx/conf.d/php.conf
php='fastcgi_pass unix:/run/php/demo.sock; include snippets/fastcgi-php.conf;'
for name in blog cached limited shop; do
    case $name in
        cached) more='fastcgi_cache php; fastcgi_cache_key $host$request_uri; fastcgi_cache_valid 200 1s;' ;;
        limited) more='limit_req zone=visits burst=1000 nodelay;' ;;
        *) more='' ;;
    esac
    site $name <<END
    root /var/www/wordpress;
    index index.php;
    location / { try_files \$uri \$uri/ /index.php?\$args; }
    location ~ \.php\$ { $php $more }
    location ~ /\.ht { deny all; }
END
done

# Django behind gunicorn, by a socket and by a port, with its files beside it.
mkdir -p /srv/django
cat > /srv/django/app.py <<'END'
import django
from django.conf import settings
from django.http import HttpResponse
settings.configure(DEBUG=False, SECRET_KEY="word", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__)
django.setup()
from django.core.wsgi import get_wsgi_application
from django.urls import re_path
urlpatterns = [re_path("", lambda request: HttpResponse("django " + request.get_host() + request.path))]
application = get_wsgi_application()
END
echo 'upstream django { server unix:/run/django.sock; } upstream django_port { server 127.0.0.1:8001; keepalive 8; }' \
    > /etc/nginx/conf.d/django.conf
for name in app intranet admin api; do
    group=django; [ $name = api ] && group=django_port
    site $name <<END
    location /static/ { alias /var/www/plain/; }
    location / { proxy_pass http://$group; include proxy_params; proxy_http_version 1.1; proxy_set_header Connection ""; }
END
done

# An application that is proxied: plain, rewritten, cached, and with an upstream that is down.
echo 'proxy_cache_path /var/cache/nginx-pages keys_zone=pages:1m; upstream pair { server 127.0.0.1:8003; server 127.0.0.1:8001; }' \
    > /etc/nginx/conf.d/proxy.conf
site proxy <<'END'
    location / { proxy_pass http://127.0.0.1:8001; }
END
site rewritten <<'END'
    rewrite ^/old/(.*)$ /new/$1 last;
    location / { proxy_pass http://127.0.0.1:8001/inner/; }
END
site pages <<'END'
    location / { proxy_pass http://127.0.0.1:8001; proxy_cache pages; proxy_cache_valid 1s; proxy_cache_lock on; }
END
site pair <<'END'
    location / { proxy_pass http://pair; proxy_next_upstream error timeout; }
END

# Two of stream.
grep -q '^stream' /etc/nginx/nginx.conf || cat >> /etc/nginx/nginx.conf <<'END'
stream {
    server { listen 9001; proxy_pass 127.0.0.1:8001; }
    server { listen 9002; proxy_pass unix:/run/django.sock; }
}
END

cat > /etc/php/demo.conf <<'END'
[global]
error_log = /var/log/php-demo.log
[demo]
user = www-data
listen = /run/php/demo.sock
listen.owner = www-data
pm = static
pm.max_children = 3
END
mkdir -p /run/php /run/mysqld
chown mysql /run/mysqld
[ -d /var/lib/mysql/mysql ] || mariadb-install-db --user=mysql --auth-root-authentication-method=normal --skip-test-db > /dev/null
mariadbd --user=mysql --skip-networking --socket=/run/mysqld/mysqld.sock > /var/log/mariadb.log 2>&1 &
for _ in $(seq 200); do mariadb -u root -e "create database if not exists site; grant all on site.* to site@localhost identified by 'word'" 2> /dev/null && break; sleep 0.1; done
"$(ls /usr/sbin/php-fpm* | tail -1)" -R -F -y /etc/php/demo.conf &
(cd /srv/django && gunicorn -k gthread --threads 8 --keep-alive 75 -b unix:/run/django.sock -b 127.0.0.1:8001 app > /var/log/gunicorn.log 2>&1) &
for _ in $(seq 200); do [ -S /run/django.sock ] && [ -S /run/php/demo.sock ] && break; sleep 0.1; done
