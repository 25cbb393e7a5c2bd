# A site of WordPress from Debian's package, with a database of its own. The folder is the argument.
set -e
cp -rL /usr/share/wordpress site
rm -f site/wp-config.php
mkdir -p site/wp-content/uploads site/wp-content/upgrade
cp wp-config.php site/wp-config.php
mariadb-install-db --no-defaults --user="$2" --datadir="$1/db" --auth-root-authentication-method=normal --skip-test-db >/dev/null
