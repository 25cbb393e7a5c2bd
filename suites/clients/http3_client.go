// HTTP/3 by quic-go: what net/http does with it, many requests at once, content both ways.
package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"

	"github.com/quic-go/quic-go/http3"
)

func main() {
	transport := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.Close()
	client := &http.Client{Transport: transport}
	base := "https://localhost:" + os.Args[1]
	ask := func(method, path string, body io.Reader) string {
		request, _ := http.NewRequest(method, base+path, body)
		answer, err := client.Do(request)
		if err != nil {
			return "error " + err.Error()
		}
		defer answer.Body.Close()
		content, err := io.ReadAll(answer.Body)
		if err != nil {
			return fmt.Sprint(answer.StatusCode, " ", len(content), " bytes, then an error")
		}
		return fmt.Sprintf("%s %d %d bytes %x trailers %v", answer.Proto, answer.StatusCode, len(content),
			sha256.Sum256(content), answer.Trailer)
	}
	fmt.Println("go page:", ask("GET", "/index.html", nil))
	fmt.Println("go large:", ask("GET", "/big", nil))
	fmt.Println("go none:", ask("GET", "/none", nil))
	fmt.Println("go posted:", ask("POST", "/echo", bytes.NewReader(bytes.Repeat([]byte("word "), 200000))))
	fmt.Println("go without a length:", ask("POST", "/echo", io.MultiReader(strings.NewReader("one "), strings.NewReader("two"))))
	fmt.Println("go trailers:", ask("GET", "/trailers", nil))
	var wait sync.WaitGroup
	answers := make([]string, 200)
	for n := range answers {
		wait.Add(1)
		go func() { defer wait.Done(); answers[n] = ask("GET", "/index.html", nil) }()
	}
	wait.Wait()
	sort.Strings(answers)
	fmt.Println("go at once:", answers[0] == answers[len(answers)-1], answers[0])
}
