"""The server's page in a headless Chromium. Of the environment: HALFWARP, the program; SCREENSHOTS, a directory."""

import atexit
import functools
import json
import os
import re
import subprocess
import threading
import time
import unittest
import urllib.error
import urllib.request

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM = "/usr/bin/chromium"
CHROMEDRIVER = "/usr/bin/chromedriver"

# Seconds for an answer of the small model on a busy machine.
TIMEOUT = 60
DESKTOP = (1280, 800)
PHONE = (375, 667)


class Server:
    """`halfwarp serve` on the CPU, with the default model if not another or none, and other variables of the environment."""

    def __init__(self, *options, model="smollm2-135m-instruct", environment=None):
        command = [os.environ["HALFWARP"], "serve", "--device", "cpu", "--port", "0", "-c", "2048"]
        command += ["-m", model] if model else []
        command += ["--log-level", "off", *options]
        variables = os.environ | (environment or {})
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
        atexit.register(self.stop)
        line = next(line for line in self.process.stderr if line.startswith("listening on "))
        self.url = line.removeprefix("listening on ").strip()
        # A full pipe would block it.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def wait_until_ready(self):
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            try:
                return self.get("/ready")
            except urllib.error.HTTPError:
                time.sleep(0.1)
        raise TimeoutError("the server does not load its model")

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as response:
            return response.read().decode()

    def metric(self, name):
        """The sum of a metric's samples."""
        samples = re.findall(rf"^halfwarp:{name}(?:{{.*}})? (\S+)$", self.get("/metrics"), re.M)
        return sum(map(float, samples))

    def stop(self):
        self.process.terminate()
        self.process.wait()


@functools.cache
def server():
    """The server that the tests share."""
    shared = Server()
    shared.wait_until_ready()
    return shared


@functools.cache
def browser():
    """The browser that the tests share."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for name in ["headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"]:
        options.add_argument(f"--{name}")
    # A mouse, which a headless browser has not.
    mouse = "primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"
    options.add_argument(f"--blink-settings={mouse}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(CHROMEDRIVER))
    atexit.register(driver.quit)
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": permissions})
    return driver


class PageTest(unittest.TestCase):
    """Each test starts with an empty page at the size of a desktop, and ends with a console without errors."""

    # The server, where it is not the shared one.
    own_server = None
    # Of errors in the console that a test provokes: what their texts contain.
    provoked = ()

    def setUp(self):
        self.driver = browser()
        self.server = self.own_server or server()
        self.size(*DESKTOP)
        self.scheme("light")
        self.driver.get(self.server.url + "/")
        self.script("localStorage.clear(); sessionStorage.clear();")
        # Short answers, always the same ones.
        self.load(settings={"temperature": 0, "max_tokens": 12})

    def tearDown(self):
        # Ends the answer that runs.
        self.driver.get("about:blank")
        errors = [entry["message"] for entry in self.console if entry["level"] in ("SEVERE", "WARNING")]
        unexpected = [text for text in errors if not any(part in text for part in self.provoked)]
        self.assertEqual(unexpected, [])

    def load(self, **stored):
        """Loads the page, with `stored` in what it keeps."""
        for name, value in stored.items():
            self.script("localStorage.setItem(...arguments)", f"halfwarp.{name}", json.dumps(value))
        self.driver.get(self.server.url + "/")
        self.wait(lambda: self.script("return document.readyState") == "complete")

    def load_answer(self, content, question="Show me"):
        """Loads the page with a conversation of one question and one answer."""
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": content}]
        self.load(conversations=[{"id": "1", "name": question, "messages": messages}])

    @property
    def console(self):
        """What the console got since it was last read."""
        return self.driver.get_log("browser")

    def requests(self):
        """Bodies of the requests for answers since they were last read."""
        sent = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"]["request"] for event in sent if event["method"] == "Network.requestWillBeSent"]
        return [json.loads(request["postData"]) for request in sent if request["url"].endswith("/completions")]

    def script(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def find(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css):
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def texts(self, css):
        return [element.text for element in self.all(css)]

    def click(self, css, text=None):
        """Clicks the first element of `css` that has `text`, which the mouse may have to uncover."""
        found = self.all(css)
        found = [element for element in found if text in (None, element.get_property("textContent"))]
        self.assertTrue(found, f"{css} {text}")
        found[0].click()

    def keys(self, *keys):
        """Presses keys where the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def chord(self, *keys):
        """Presses the last key while the others are held."""
        chain = ActionChains(self.driver)
        for key in keys[:-1]:
            chain.key_down(key)
        chain.send_keys(keys[-1])
        for key in keys[:-1]:
            chain.key_up(key)
        chain.perform()

    def wait(self, condition, message=None):
        return WebDriverWait(self.driver, TIMEOUT, 0.05).until(lambda _: condition(), message)

    def ask(self, text):
        """Sends a message and waits for the whole answer."""
        self.find("#prompt").send_keys(text, Keys.ENTER)
        self.wait_for_end()
        return self.texts(".message.assistant .body")[-1]

    def wait_for_text(self):
        """Waits until an answer has begun."""
        self.wait(lambda: any(self.texts(".message.assistant .body")), "no answer begins")

    def wait_for_end(self):
        self.wait(lambda: not self.find("#stop").is_displayed(), "the answer does not end")

    def answer_with(self, events):
        """Lets the page get `events` for an answer, instead of the server's."""
        self.script("const text = arguments[0]; window.fetch = async () => new Response(text)", events)

    def problem(self):
        """What the page says is wrong, once it says it."""
        self.wait(lambda: self.find("#problem").is_displayed(), "no problem is shown")
        return self.find("#problem").text

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": width < 600})

    def scheme(self, name):
        """What the browser says that the user prefers: dark or light."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def screenshot(self, name):
        directory = os.environ["SCREENSHOTS"]
        os.makedirs(directory, exist_ok=True)
        self.driver.save_screenshot(os.path.join(directory, f"{name}.png"))
