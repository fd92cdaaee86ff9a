"""The tab of live figures."""

import re

from selenium.webdriver.common.keys import Keys

from harness import PageTest


class Figures(PageTest):
    def figure(self, name):
        """The number that the tile with a name has now."""
        tiles = self.script("""
            const texts = (tile) => [...tile.children].map((node) => node.textContent);
            return [...document.querySelectorAll("#tiles div")].map(texts);
        """)
        number = re.match(r"[\d.]+", dict(tiles).get(name, ""))
        return float(number[0]) if number else None

    def test_live_requests_speed_and_cache(self):
        self.load(settings={"temperature": 0})
        self.find("#prompt").send_keys("Write a long story about a dog.", Keys.ENTER)
        self.wait_for_text()
        self.click("#tab-figures")
        self.wait(lambda: self.figure("Requests running") == 1, "no request runs")
        self.wait(lambda: (self.figure("Generated tokens/s") or 0) > 0, "no tokens per second")
        self.wait(lambda: (self.figure("KV cache used") or 0) > 0, "no use of the cache")
        used = self.server.metric("kv_cache_usage_perc")
        self.assertAlmostEqual(self.figure("KV cache used") / 100, used, delta=0.03)
        self.assertGreater(self.figure("Time to first token, mean"), 0)
        self.screenshot("figures-live")
        self.click("#tab-chat")
        self.click("#stop")
        self.click("#tab-figures")
        self.wait(lambda: self.figure("Requests running") == 0, "the request still runs")

    def test_reads_only_while_it_is_shown(self):
        reads = """
            const names = performance.getEntriesByType("resource").map(({ name }) => name);
            return names.filter((name) => name.endsWith("/metrics")).length;
        """
        self.assertEqual(self.script(reads), 0)
        self.click("#tab-figures")
        self.wait(lambda: self.script(reads) >= 2, "the figures are not read again")
        self.click("#tab-chat")
        before = self.script(reads)
        self.driver.execute_async_script("setTimeout(arguments[0], 3500)")
        self.assertLessEqual(self.script(reads), before + 1)
